"""Pages between two real processes: never torn, whoever dies when."""

import multiprocessing
import os
import struct
from pathlib import Path

import pytest
from everstep_protocol.shared_memory import Control, Page, Progress


def progress(step: int) -> Progress:
    return Progress(1, step, step, step, step % 7, step, step)


def test_a_page_is_empty_until_written_and_keeps_its_record(tmp_path: Path) -> None:
    writer, reader = Page(tmp_path / "progress-0", Progress), Page(tmp_path / "progress-0", Progress)
    with pytest.raises(FileNotFoundError):
        reader.open(create=False)
    writer.open(create=True)
    reader.open(create=False)
    assert reader.read() is None
    for step in (-1, 0, 2**62):
        writer.write(progress(step))
        assert reader.read() == progress(step)
    writer.open(create=True)
    assert writer.read() == progress(2**62), "opening again keeps it"
    reader.close()
    writer.close()


def test_a_writer_that_died_half_way_is_seen_and_repaired(tmp_path: Path) -> None:
    page = Page(tmp_path / "control", Control)
    page.open(create=True)
    page.write(Control(1, 10, 0))
    with (tmp_path / "control").open("r+b") as file:
        file.write(struct.pack("<Q", 3))
    assert page.read() is None
    page.write(Control(1, 11, 1))
    assert page.read() == Control(1, 11, 1)


def _write_many(path: Path, count: int) -> None:
    page = Page(path, Progress)
    page.open(create=True)
    for step in range(count):
        page.write(progress(step))
    os._exit(0)


def test_a_reader_never_sees_half_a_record_of_another_process(tmp_path: Path) -> None:
    path = tmp_path / "progress-0"
    page = Page(path, Progress)
    page.open(create=True)
    count = 50_000
    process = multiprocessing.get_context("fork").Process(target=_write_many, args=(path, count))
    process.start()
    newest = -1
    while process.is_alive():
        newest = look(page, newest)
    process.join()
    assert look(page, newest) == count - 1


def look(page: Page[Progress], newest: int) -> int:
    record = page.read()
    if record is None:
        return newest
    assert record == progress(record.step), "all of one write"
    assert record.step >= newest
    return record.step


def test_containers_that_run_as_different_users_share_a_page(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        Page(tmp_path / "control", Control).open(create=True)
    finally:
        os.umask(before)
    assert (tmp_path / "control").stat().st_mode & 0o777 == 0o666
