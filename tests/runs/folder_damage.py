"""Damage that a run folder may have suffered: named changes of one file, made from sound bytes.

Each is (file, name, change); ``change(path)`` spoils the file at ``path``. Files whose content is
protected by a hash are also rewritten consistently, as a program with a fault might write them.
"""

import json
import os
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from manifed.runs import checkpoint
from tests.privacy.forging import rewritten

MANIFEST = "manifest.json"
METRICS = "metrics.csv"
EXPERIMENT = "experiment.toml"
LEDGER = "ledger.jsonl"
HEAD = "ledger.jsonl.head"
CHECKPOINT = "checkpoint.safetensors"
MODEL = "model.safetensors"
Change = Callable[[Path], object]
Damage = tuple[str, str, Change]
Keys = tuple[str | int, ...]
LONG = "9" * 5000
DEEP = "[" * 5000 + "]" * 5000


# -- any file ------------------------------------------------------------------------------------
def of_bytes(change: Callable[[bytes], bytes]) -> Change:
    return lambda path: path.write_bytes(change(path.read_bytes()))


def instead(make: Callable[[Path], object]) -> Change:
    """Something that is no file, made in its place."""
    return lambda path: path.unlink() or make(path)


ANY: dict[str, Change] = {
    "gone": lambda path: path.unlink(),
    "a folder": instead(lambda path: (path / "inside").mkdir(parents=True)),
    "a loop": instead(lambda path: path.symlink_to(path.name)),
    "a link to nothing": instead(lambda path: path.symlink_to("nowhere")),
    "a pipe": instead(os.mkfifo),
    "an endless device": instead(lambda path: path.symlink_to("/dev/zero")),
    "empty": of_bytes(lambda data: b""),
    "a newline": of_bytes(lambda data: b"\n"),
    "cut by 10": of_bytes(lambda data: data[:-10]),
    "its first half": of_bytes(lambda data: data[: len(data) // 2]),
    "its second half": of_bytes(lambda data: data[len(data) // 2 :]),
    "its first byte": of_bytes(lambda data: data[:1]),
    "twice": of_bytes(lambda data: data + data),
    "bytes": of_bytes(lambda data: bytes(range(256)) * 4),
    "zeros": of_bytes(lambda data: bytes(len(data))),
    "no UTF-8": of_bytes(lambda data: data[:40] + b"\xff\xfe" + data[40:]),
    "UTF-16": of_bytes(lambda data: data.decode("latin-1").encode("utf-16")),
    "deep": of_bytes(lambda data: DEEP.encode()),
    "deep and open": of_bytes(lambda data: b'{"a":' * 200_000),
    "one long number": of_bytes(lambda data: LONG.encode()),
}


# -- JSON ----------------------------------------------------------------------------------------
class Gone:
    """Stands for a key that is removed."""


VALUES = {
    "gone": Gone, "null": None, "a list": [], "a list of lists": [[[]]], "a table": {"x": {}},
    "a word": "word", "true": True, "-1": -1, "1.5": 1.5, "long": 10**4000, "lines": "a\nb\x00",
    "half a pair": "\ud800",
}  # fmt: skip
RAW = {"nan": "NaN", "inf": "-Infinity", "1e999": "1e999", "longer": LONG, "nested": DEEP}
"""What `json.dumps` does not write."""


def _put(table, keys, value):
    *ways, last = keys
    for key in ways:
        table = table[key]
    if value is Gone and isinstance(table, dict):
        table.pop(last, None)
    elif value is Gone:
        del table[last]
    else:
        table[last] = value


def json_change(keys: Keys, value: object, raw: str | None = None) -> Change:
    def change(path):
        table = json.loads(path.read_text())
        _put(table, keys, value if raw is None else "RAW")
        path.write_text(json.dumps(table).replace('"RAW"', raw or '"RAW"'))

    return change


def placed(
    file: str,
    says: str,
    places: Iterable[Keys],
    names: Iterable[str],
    change: Callable[[Keys, object], Change],
) -> Iterator[Damage]:
    """Each of these `VALUES` in each of these places."""
    for keys in places:
        where = ".".join(map(str, keys))
        for name in names:
            yield file, f"{says}{where} {name}", change(keys, VALUES[name])


def json_damage(file: str, places: list[Keys]) -> Iterator[Damage]:
    yield from placed(file, "", places, VALUES, json_change)
    for keys in places:
        for name, raw in RAW.items():
            yield file, f"{'.'.join(map(str, keys))} {name}", json_change(keys, None, raw)


MANIFEST_KEYS = [
    "format", "name", "privacy", "config", "config_sha256", "experiment_sha256", "ledger_run_id",
    "stopped", "final",
]  # fmt: skip
DEEPER = [
    *[("privacy", key) for key in ("kind", "noise_source", "noise_origins", "adversaries", "unit")],
    ("privacy", "adversaries", 0),
    *[("privacy", "adversaries", 0, key) for key in ("name", "text", "epsilon", "delta")],
    *[("final", key) for key in ("rounds", "epsilon", "delta", "relative_cost_gap", "seconds")],
    *[("config", key) for key in ("problem", "privacy", "federation", "strategy")],
]


# -- rows ----------------------------------------------------------------------------------------
def of_rows(change: Callable[[list[list[str]]], list[list[str]]]) -> Change:
    def spoil(path):
        rows = [line.split(",") for line in path.read_text().splitlines()]
        path.write_text("".join(",".join(row) + "\n" for row in change(rows)))

    return spoil


def with_cell(row: int, column: int, text: str) -> Change:
    def change(rows):
        rows[row][column] = text
        return rows

    return of_rows(change)


def metrics_damage() -> Iterator[Damage]:
    cells = ["x", "1_0", "--1", "0x1", "1,2", '"1', "\x00", "١", " ", LONG, "1e", "nan(1)", "\r"]
    for text in cells:
        yield METRICS, f"round {text[:9]!r}", with_cell(2, 0, text)
        yield METRICS, f"cell {text[:9]!r}", with_cell(2, 2, text if text != LONG else "9x" * 5000)
    for text in ("", "-1", "1.5", "nan", "inf", "1e3"):
        yield METRICS, f"round {text!r}", with_cell(2, 0, text)
    for column in (0, 1, 3):
        for text in ("", "round", "Round", "seconds", "\x00", "a b"):
            if (column, text) not in {(0, "round")}:
                yield METRICS, f"heading {column} {text!r}", with_cell(0, column, text)
    changes: dict[str, Callable] = {
        "no heading": lambda rows: rows[1:],
        "two headings": lambda rows: rows[:1] + rows,
        "a row twice": lambda rows: [*rows, rows[-1]],
        "rows turned round": lambda rows: rows[:1] + rows[:0:-1],
        "a row too long": lambda rows: [*rows[:-1], [*rows[-1], "1"]],
        "a row too short": lambda rows: [*rows[:-1], rows[-1][:-1]],
        "an empty row": lambda rows: [*rows[:2], [""], *rows[2:]],
        "without rounds": lambda rows: [row[1:] for row in rows],
    }
    for name, change in changes.items():
        yield METRICS, name, of_rows(change)
    yield METRICS, "semicolons", of_bytes(lambda data: data.replace(b",", b";"))
    yield METRICS, "carriage returns", of_bytes(lambda data: data.replace(b"\n", b"\r\n"))


# -- ledger --------------------------------------------------------------------------------------
def of_lines(change: Callable[[list[bytes]], list[bytes]]) -> Change:
    return of_bytes(lambda data: b"".join(change(data.splitlines(keepends=True))))


def with_line(sequence: int, keys: Keys, value: object) -> Change:
    """A chain and head that are right, with another value in one line."""

    def change(found):
        if found["sequence"] == sequence:
            _put(found, keys, value)
        return found

    return lambda path: rewritten(path, change)


def ledger_damage() -> Iterator[Damage]:
    lines: dict[str, Callable] = {
        "no first line": lambda lines: lines[1:],
        "no last line": lambda lines: lines[:-1],
        "no middle line": lambda lines: [*lines[:2], *lines[3:]],
        "lines swapped": lambda lines: [lines[0], lines[2], lines[1], *lines[3:]],
        "a line twice": lambda lines: [*lines, lines[-1]],
        "a line of words": lambda lines: [*lines, b"words\n"],
        "a torn line": lambda lines: [*lines, lines[-1][:-9]],
        "a changed digit": lambda lines: [*lines[:2], lines[2].replace(b"0", b"1", 1), *lines[3:]],
        "deep line": lambda lines: [*lines, DEEP.encode() + b"\n"],
    }
    for name, change in lines.items():
        yield LEDGER, name, of_lines(change)
    names = ("null", "a list", "a table", "-1", "1.5", "long", "true")
    header = [("said", key) for key in ("format", "run_id", "config_sha256", "key_id")]
    yield from placed(LEDGER, "header ", header, names, partial(with_line, 0))
    update = ("terms", "updates", 0)
    first = [
        ("reserves",), ("reserves", "first"), ("reserves", "attempt"), ("reserves", "cohort"),
        ("terms",), ("terms", "population"), ("terms", "updates"), ("terms", "sampling"),
        ("terms", "aggregate"), ("terms", "planned_draws"), (*update, "partitions"),
        (*update, "releases", 0, "noise_multiplier"), (*update, "releases", 0, "count"),
    ]  # fmt: skip
    names = ("gone", "null", "a list", "a table", "a word", "-1", "long")
    yield from placed(LEDGER, "charge ", first, names, partial(with_line, 1))
    for cohort in ("0-99999999", "1-0", "b:!", "b:////", "0-" + "9" * 30, "-1"):
        yield LEDGER, f"cohort {cohort[:12]}", with_line(1, ("reserves", "cohort"), cohort)
    for key in ("kind", "body", "settles", "amends", "mystery"):
        yield LEDGER, f"with {key}", with_line(1, (key,), {"upto": 1})


# -- tensors -------------------------------------------------------------------------------------
def _header_claims(length: int) -> Change:
    return of_bytes(lambda data: struct.pack("<Q", length) + data[8:])


def _header(text: str) -> Change:
    return of_bytes(lambda data: struct.pack("<Q", len(text)) + text.encode())


def tensor_headers(file: str) -> Iterator[Damage]:
    for length in (0, 1, 10**9, 10**18, 2**63, 2**64 - 1):
        yield file, f"header of {length:.0e} bytes", _header_claims(length)
    far = '{"x":{"dtype":"F64","shape":[%s],"data_offsets":[0,%s]}}'
    texts = {
        "list": "[]", "deep": DEEP, "empty": "{}", "word": '"x"', "no tensor": '{"x":1}',
        "far": far % (10**17, 8 * 10**17), "overflow": far % ("4294967296,4294967296,2", 8),
        "negative": far % (-1, -8), "type": '{"x":{"dtype":"Q9","shape":[1],"data_offsets":[0,8]}}',
        "long": far % (LONG, LONG), "metadata": '{"__metadata__":[]}',
        "numbers": '{"__metadata__":{"round":1,"meta":{},"sha256":null}}',
    }  # fmt: skip
    for name, text in texts.items():
        yield file, f"header {name}", _header(text)


def with_model(change: Callable[[dict], dict]) -> Change:
    return lambda path: save_file(change(load_file(path)), path)


def model_damage() -> Iterator[Damage]:
    yield from tensor_headers(MODEL)
    changes: dict[str, Callable] = {
        "another name": lambda t: {"y": t["x"]},
        "no tensor": lambda t: {},
        "not finite": lambda t: {"x": torch.full_like(t["x"], torch.nan)},
        "infinite": lambda t: {"x": torch.full_like(t["x"], torch.inf)},
        "integers": lambda t: {"x": t["x"].to(torch.int64)},
        "booleans": lambda t: {"x": t["x"].to(torch.bool)},
        "complex": lambda t: {"x": t["x"].to(torch.complex64)},
    }
    for name, change in changes.items():
        yield MODEL, name, with_model(change)


def consistent_checkpoint(**changes: Callable) -> Change:
    """A checkpoint whose SHA-256 is right, with other parts."""

    def spoil(path):
        saved = checkpoint.load(path)
        parts = {"server_round": saved.server_round, "tensors": dict(saved.tensors)}
        parts["meta"] = saved.meta.model_dump(mode="json")
        parts |= {name: change(parts[name]) for name, change in changes.items()}
        metadata = {"round": str(parts["server_round"]), "meta": parts["meta"]}
        if not isinstance(metadata["meta"], str):
            metadata["meta"] = json.dumps(metadata["meta"])
        metadata["sha256"] = checkpoint.digest_of(parts["tensors"], metadata)
        save_file(parts["tensors"], path, metadata)

    return spoil


def with_meta(keys: Keys, value: object) -> Change:
    return consistent_checkpoint(meta=lambda meta: _put(meta, keys, value) or meta)


def checkpoint_damage() -> Iterator[Damage]:
    yield from tensor_headers(CHECKPOINT)
    for value in (-1, 0, "", "x", "1.5", LONG, 10**9, "١"):
        change = consistent_checkpoint(server_round=lambda _, value=value: value)
        yield CHECKPOINT, f"round {str(value)[:9]!r}", change
    tensors: dict[str, Callable] = {
        "none": lambda t: {},
        "another name": lambda t: {f"{k}y": v for k, v in t.items()},
        "one more": lambda t: t | {"more": torch.zeros(3)},
        "another shape": lambda t: {k: v[..., :-1].clone() for k, v in t.items()},
        "one axis more": lambda t: {k: v[None].clone() for k, v in t.items()},
        "no axis": lambda t: {k: v.sum() for k, v in t.items()},
        "floats": lambda t: {k: v.to(torch.float32) for k, v in t.items()},
        "integers": lambda t: {k: v.to(torch.int64) for k, v in t.items()},
        "booleans": lambda t: {k: v.to(torch.bool) for k, v in t.items()},
        "not finite": lambda t: {k: torch.full_like(v, torch.nan) for k, v in t.items()},
        "infinite": lambda t: {k: torch.full_like(v, torch.inf) for k, v in t.items()},
    }
    for name, change in tensors.items():
        yield CHECKPOINT, f"tensors {name}", consistent_checkpoint(tensors=change)
    for text in ("", "[]", "null", "1", "word", DEEP, LONG, '{"tally":NaN}', "{}"):
        change = consistent_checkpoint(meta=lambda _, text=text: text)
        yield CHECKPOINT, f"meta {text[:9]!r}", change
    places = [
        ("last_accepted",), ("last_accepted", "0"), ("tally",), ("tally", "pending"),
        ("tally", "pending", "bytes_up"), ("tally", "told"), ("tally", "participants"),
        ("tally", "by_client"), ("tally", "failures"), ("config_sha256",), ("ledger_run_id",),
        ("ledger_head",),
    ]  # fmt: skip
    names = ("gone", "null", "a list", "a table", "a word", "-1", "1.5", "long")
    yield from placed(CHECKPOINT, "meta ", places, names, with_meta)
    for key in ("x", "-1", "99", LONG, "1.5"):
        yield CHECKPOINT, f"meta last_accepted key {key[:9]}", with_meta(("last_accepted", key), 1)
        blamed = with_meta(("tally", "by_client", key), {"reason": 1})
        yield CHECKPOINT, f"meta by_client key {key[:9]}", blamed


# -- all -----------------------------------------------------------------------------------------
def all_damage(files: tuple[str, ...], deeper: bool) -> list[Damage]:
    """Every damage to these files; ``deeper``: also inside the manifest of a finished run."""
    found: list[Damage] = [(file, name, change) for file in files for name, change in ANY.items()]
    for file, name in ((MANIFEST, METRICS), (MODEL, CHECKPOINT), (LEDGER, MANIFEST)):
        if file in files:
            found.append((file, f"the bytes of {name}", _other(name)))
    places = [(key,) for key in MANIFEST_KEYS if deeper or key != "final"]
    found += json_damage(MANIFEST, places + (DEEPER if deeper else []))
    if HEAD in files:
        found += json_damage(HEAD, [("sequence",), ("sha256",)])
    found += metrics_damage()
    found += ledger_damage()
    if CHECKPOINT in files:
        found += checkpoint_damage()
    if MODEL in files:
        found += model_damage()
    return [damage for damage in found if damage[0] in files]


def _other(name: str) -> Change:
    return lambda path: shutil.copy(path.with_name(name), path)
