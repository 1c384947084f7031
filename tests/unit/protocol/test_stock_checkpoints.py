"""TR8: stock checkpoints of every Python and torch; real ones, made by `tests/data/stock_checkpoints/make.py`."""

import shutil
from pathlib import Path

import pytest
from everstep_protocol.complete import inspect
from everstep_protocol.dcp_metadata import InvalidMetadata, parse_file_lengths, read_file_lengths
from store_support import metadata_mutations as mutations

DATA = Path(__file__).parents[2] / "data" / "stock_checkpoints"
FOLDERS = sorted(DATA.glob("py*"))
REFUSED = sorted(DATA.glob("refused-*/*"))
of_each_folder = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)


def test_each_python_is_there_with_the_oldest_and_a_new_torch() -> None:
    found = {tuple(folder.name[2:].split("-torch")) for folder in FOLDERS}
    minors = {python.rpartition(".")[0] for python, _ in found}
    assert minors == {"3.10", "3.11", "3.12", "3.13", "3.14"}
    assert {python.rpartition(".")[0] for python, torch in found if torch == "2.6.0"} == minors - {"3.14"}
    assert {python.rpartition(".")[0] for python, torch in found if torch == "2.15.0"} == minors - {"3.10"}


def test_no_file_holds_a_path_of_the_machine_that_made_it() -> None:
    for file in (path for path in DATA.rglob("*") if path.is_file() and path.suffix != ".py"):
        assert not any(place in file.read_bytes() for place in (b"/tmp", b"/home", b"/root", b"/work")), file


@of_each_folder
def test_it_is_complete_and_a_cut_one_is_not(folder: Path, tmp_path: Path) -> None:
    directory = tmp_path / "step_3"
    shutil.copytree(folder / "step_3", directory)
    verdict = inspect(directory, job_uids=frozenset())
    assert (verdict.state, verdict.reason, verdict.step) == ("complete", "", 3)
    data = directory / "__0_0.distcp"
    assert read_file_lengths(directory / ".metadata") == {data.name: data.stat().st_size}
    data.write_bytes(data.read_bytes()[:-1])
    assert inspect(directory, job_uids=frozenset()).state == "refused"


@of_each_folder
def test_it_does_not_matter_under_which_path_it_was_saved(folder: Path) -> None:
    lengths = read_file_lengths(folder / "step_3" / ".metadata")
    for name in ("absolute", "empty", "text", "none"):
        assert read_file_lengths(folder / name) == lengths, name


@pytest.mark.parametrize("folder", REFUSED, ids=lambda folder: folder.name)
def test_a_format_that_dcp_load_does_not_read_is_refused(folder: Path) -> None:
    verdict = inspect(folder / "step_3", job_uids=frozenset())
    told = "stream extension" if folder.name == "compressed" else "another format"
    assert verdict.state == "refused"
    assert told in verdict.reason


def test_the_refused_formats_are_there() -> None:
    assert [folder.name for folder in REFUSED] == ["compressed", "safetensors", "safetensors-alone"]


RAW = (DATA / "py3.12.1-torch2.6.0" / "absolute").read_bytes()


@pytest.mark.parametrize("what", mutations.HARMLESS)
def test_what_dcp_writes_is_admitted(what: str) -> None:
    assert parse_file_lengths(mutations.before(RAW, mutations.HARMLESS[what]))


@pytest.mark.parametrize("what", mutations.HARMFUL)
def test_an_admitted_name_is_admitted_in_its_own_use_only(what: str) -> None:
    with pytest.raises(InvalidMetadata):
        parse_file_lengths(mutations.before(RAW, mutations.HARMFUL[what]))


def test_every_mutation_gives_lengths_or_is_refused_in_words() -> None:
    for what, raw in mutations.mutations(RAW):
        try:
            lengths = parse_file_lengths(raw)
        except InvalidMetadata:
            continue
        except Exception as error:
            raise AssertionError(what) from error
        assert lengths, what
