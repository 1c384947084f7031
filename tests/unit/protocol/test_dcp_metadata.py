"""B29: `.metadata` is read without unpickling it."""

import os
import pickle
import pickletools
import struct
from pathlib import Path

import pytest
from everstep_protocol import dcp_pickle
from everstep_protocol.dcp_metadata import InvalidMetadata, parse_file_lengths, read_file_lengths
from store_support import stock

PLACES = [("__0_0.distcp", 0, 100), ("__0_0.distcp", 100, 28), ("__1_0.distcp", 64, 36), ("__1_0.distcp", 0, 64)]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_gives_the_largest_end_in_each_file(protocol: int) -> None:
    raw = stock.metadata_bytes(PLACES, protocol=protocol)
    assert parse_file_lengths(raw) == {"__0_0.distcp": 128, "__1_0.distcp": 100}


def test_other_records_of_the_same_pickle_do_not_matter() -> None:
    assert parse_file_lengths(pickletools.optimize(stock.metadata_bytes(PLACES))) == {
        "__0_0.distcp": 128,
        "__1_0.distcp": 100,
    }


class Payload:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return (os.mkdir, (str(self.path),))


def test_b29_a_payload_is_named_and_not_run(tmp_path: Path) -> None:
    for protocol in (0, 1, 2, 3, 4, 5):
        raw = pickle.dumps({"a": Payload(tmp_path / "ran")}, protocol=protocol)
        with pytest.raises(InvalidMetadata):
            parse_file_lengths(raw)
    with pytest.raises(InvalidMetadata, match=r"'\w+\.mkdir', which DCP does not write; it was not loaded"):
        parse_file_lengths(pickle.dumps(Payload(tmp_path / "ran")))
    assert list(tmp_path.iterdir()) == []
    pickle.loads(raw)
    assert (tmp_path / "ran").is_dir(), "the payload would have run"


@pytest.mark.parametrize(
    "module_and_name", ["builtins eval", "os system", "torch load", "torch.hub load", "torch Tensor"]
)
def test_b29_only_the_listed_classes_are_admitted(module_and_name: str) -> None:
    module, name = module_and_name.split()
    with pytest.raises(InvalidMetadata, match="does not write"):
        parse_file_lengths(f"\x80\x02c{module}\n{name}\n.".encode("latin-1"))


def test_b29_an_admitted_class_can_neither_be_called_into_nor_be_changed() -> None:
    changes_the_class = b"\x80\x02ctorch\nSize\nN}X\x08\x00\x00\x00__init__K\x01s\x86b."
    with pytest.raises(InvalidMetadata):
        parse_file_lengths(changes_the_class)
    assert parse_file_lengths(stock.metadata_bytes(PLACES))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x80",
        b"\x80\x02.",
        b"\x80\x02N.",
        b"\x80\x02(.",
        b"\x80\x020.",
        b"\x80\x02h\x07.",
        b"\x80\x02}s.",
        b"\x80\x02}(K\x01u.",
        b"\x80\x02t.",
        b"\x80\x02K\x01\x87.",
        b"garbage",
        b"\x80\x04\x95",
        b"\x80\x02" + b"\x8e" + struct.pack("<Q", 2**62) + b".",
        b"\x80\x02r" + struct.pack("<I", 2**32 - 1) + b".",
    ],
)
def test_damage_is_said_not_raised_as_something_else(raw: bytes) -> None:
    with pytest.raises(InvalidMetadata):
        parse_file_lengths(raw)


def test_every_cut_of_a_good_file_is_refused() -> None:
    raw = stock.metadata_bytes(PLACES)
    for length in range(0, len(raw), 7):
        with pytest.raises(InvalidMetadata):
            parse_file_lengths(raw[:length])


def test_a_memo_index_far_away_costs_nothing() -> None:
    raw = stock.metadata_bytes(PLACES, protocol=2)
    far = raw[:2] + b"Nr" + struct.pack("<I", 2**32 - 1) + raw[2:]
    with pytest.raises(InvalidMetadata, match="damaged"):  # an unpickler would make room for all of them
        parse_file_lengths(far)


def test_nested_sharing_is_not_walked() -> None:
    # Each level holds the one before twice: hashing or printing the last would take 2**500 steps.
    levels = b"".join(b"q" + bytes([i % 256]) + b"h" + bytes([i % 256]) + b"\x86" for i in range(500))
    raw = b"\x80\x02}N" + levels + b"K\x01s."
    with pytest.raises(InvalidMetadata):
        parse_file_lengths(raw)


def test_objects_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dcp_pickle, "MAX_OBJECTS", 100)
    with pytest.raises(InvalidMetadata, match="more than 100 objects"):
        parse_file_lengths(b"\x80\x02" + b"}" * 200 + b".")


@pytest.mark.parametrize(
    "place",
    [
        ("../../etc/passwd", 0, 1),
        ("/etc/passwd", 0, 1),
        ("a/b.distcp", 0, 1),
        ("..", 0, 1),
        ("", 0, 1),
        (b"raw", 0, 1),
        ("x\0y", 0, 1),
        ("x\ud800y", 0, 1),
        ("é" * 200, 0, 1),
        ("__0_0.distcp", -1, 1),
        ("__0_0.distcp", 0, -1),
        ("__0_0.distcp", True, 1),
        ("__0_0.distcp", 0, 2**70),
        ("__0_0.distcp", None, 1),
        ("__0_0.distcp", 0.5, 1),
    ],
)
def test_places_outside_the_directory_or_without_sense_are_refused(place: tuple[object, object, object]) -> None:
    with pytest.raises(InvalidMetadata):
        parse_file_lengths(stock.metadata_bytes([place]))


def tensor(**changes: object) -> stock.TensorStorageMetadata:
    """A tensor of two chunks, with some attributes changed."""
    chunks = [stock.ChunkStorageMetadata(stock.Size((row, 0)), stock.Size((1, 3))) for row in (0, 1)]
    values = {"properties": stock.TensorProperties(stock.FLOAT32), "size": stock.Size((2, 3)), "chunks": chunks}
    return stock.TensorStorageMetadata(**{**values, **changes})  # type: ignore[arg-type]


def metadata_of(item: object, *, lengths: tuple[int, int] = (13, 13), **changes: object) -> bytes:
    indices = [stock.MetadataIndex("w", stock.Size((row, 0)), row) for row in (0, 1)]
    places = {
        index: stock._StorageInfo("__0_0.distcp", 0, length) for index, length in zip(indices, lengths, strict=True)
    }
    return stock.dumps(stock.Metadata(**{"state_dict_metadata": {"w": item}, "storage_data": places, **changes}))


def test_what_dcp_load_needs_is_there() -> None:
    assert parse_file_lengths(metadata_of(tensor())) == {"__0_0.distcp": 13}


def chunk(offsets: tuple[int, ...], sizes: tuple[int, ...]) -> stock.ChunkStorageMetadata:
    return stock.ChunkStorageMetadata(stock.Size(offsets), stock.Size(sizes))


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (metadata_of(stock.BytesStorageMetadata()), "no place for w"),
        (metadata_of(7), "does not say whether w is a tensor"),
        (metadata_of(tensor(size=7)), "no sound size"),
        (metadata_of(tensor(properties=7)), "no sound size"),
        (metadata_of(tensor(chunks=7)), "no sound size"),
        (metadata_of(tensor(chunks=[7])), "does not lie within"),
        (metadata_of(tensor(size=stock.Size((2,)))), "does not lie within"),
        (metadata_of(tensor(chunks=[chunk((0, 0), (1, 4))])), "does not lie within"),
        (metadata_of(tensor(chunks=[chunk((0,), (1, 3))])), "does not lie within"),
        (metadata_of(tensor(chunks=[chunk((0, 1), (2, 2))])), r"no place for the chunk of w at \[0, 1\]"),
        (metadata_of(tensor(chunks=[chunk((0, 0), (1, 3))])), "3 elements of w, which has 6"),
        (metadata_of(tensor(), lengths=(13, 12)), "another format"),
        (metadata_of(tensor(), planner_data=["w"]), "another planner"),
        (metadata_of(tensor(), planner_data={"w": "w"}), "another planner"),
        (metadata_of(tensor(), planner_data={"w": (None,)}), "another planner"),
        (metadata_of(tensor(), storage_data=None), "no storage_data"),
        (metadata_of(tensor(), storage_data={"w": stock._StorageInfo("a", 0, 13)}), "belongs to no item"),
        (metadata_of(tensor(), state_dict_metadata=None), "no state_dict_metadata"),
        (metadata_of(tensor(), state_dict_metadata={7: tensor()}), "whose key is no text"),
    ],
)
def test_what_dcp_load_would_stumble_over_is_refused(raw: bytes, told: str) -> None:
    with pytest.raises(InvalidMetadata, match=told):
        parse_file_lengths(raw)


def test_no_data_is_no_checkpoint() -> None:
    with pytest.raises(InvalidMetadata, match="names no data"):
        parse_file_lengths(stock.dumps(stock.Metadata({}, None, {})))


def test_b29_a_gigabyte_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / ".metadata"
    path.touch()
    os.truncate(path, 2**30)
    with pytest.raises(InvalidMetadata, match="larger than"):
        read_file_lengths(path)


def test_b29_links_pipes_and_folders_are_not_opened(tmp_path: Path) -> None:
    good = tmp_path / "good"
    good.write_bytes(stock.metadata_bytes(PLACES))
    assert read_file_lengths(good)
    (tmp_path / "link").symlink_to(good)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("link", "pipe", "folder"):
        with pytest.raises(InvalidMetadata, match="not a regular file"):
            read_file_lengths(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        read_file_lengths(tmp_path / "nothing")
