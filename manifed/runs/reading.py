"""Reading a run folder's files, to which anything may have happened.

Every refusal is one line: the file, what was expected, what was found. Nothing is written.
"""

import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from manifed import regular
from manifed.errors import one_line, short
from manifed.federation.kinds import Kind
from manifed.privacy.adversaries import AdversaryName, MaskAdversaryName

_DEEPEST = 64
"""Levels of nesting in JSON; a manifest has eight."""


class FolderDamaged(ValueError):
    """A file of a run folder is not what a run writes; one line."""

    def __init__(self, path: Path, expected: str, found: str) -> None:
        super().__init__(one_line(f"{path}: expected {expected}, got {found}"))


def is_there(path: Path) -> bool:
    """Whether the folder has an entry of this name, of any kind, also a link to nothing.

    Raises:
        FolderDamaged: the system refuses to look.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise FolderDamaged(path, "a readable file", str(error.strerror)) from None
    return True


def check_regular(path: Path, expected: str, most: int = regular.MOST_BYTES) -> None:
    """Refuse what is no regular file of at most ``most`` bytes, before anything opens it.

    Raises:
        FolderDamaged: for none, a folder, a pipe, a device, a loop of links.
    """
    with _refused(path, expected):
        regular.check_regular(path, most)


def read_whole(path: Path, expected: str) -> bytes:
    """The bytes of a regular file.

    Raises:
        FolderDamaged: as `check_regular`, or the system refuses to read it.
    """
    with _refused(path, expected):
        return regular.read_regular(path)


@contextmanager
def _refused(path: Path, expected: str) -> Generator[None]:
    """Say of what the system refuses that the folder is damaged."""
    try:
        yield
    except OSError as error:
        found = "none" if isinstance(error, FileNotFoundError) else str(error.strerror or error)
        raise FolderDamaged(path, expected, found) from None


def json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file: finite numbers, bounded depth, no key twice, whole characters.

    Raises:
        FolderDamaged: for anything else.
    """
    return object_of(read_whole(path, "JSON"), path)


def object_of(content: bytes | str, path: Path) -> dict[str, Any]:
    """The JSON object in the bytes of ``path``; errors as `json_object`."""
    try:
        found = json.loads(content, parse_constant=_refuse_constant, object_pairs_hook=_once)
    except RecursionError:
        raise FolderDamaged(path, f"JSON at most {_DEEPEST} deep", "deeper tables") from None
    except ValueError as error:  # no JSON, no UTF-8, an integer of thousands of digits
        raise FolderDamaged(path, "JSON", str(error)) from None
    if not isinstance(found, dict):
        raise FolderDamaged(path, "a JSON object", short(found))
    level: list[Any] = [found]
    for _ in range(_DEEPEST):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
    if level:
        raise FolderDamaged(path, f"JSON at most {_DEEPEST} deep", "deeper tables")
    try:  # what can be read must be fit to be shown and written
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise FolderDamaged(path, "text", "half of a surrogate pair") from None
    return found


def checked(table: Mapping[str, Any], shape: type[BaseModel], path: Path) -> None:
    """Refuse a table of the file ``path`` that is not of ``shape``.

    Raises:
        FolderDamaged: with the first field that is wrong.
    """
    try:
        shape.model_validate(table)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=True)[0]
        where = ".".join(one_line(str(part), 80) for part in first["loc"])
        found = "none" if first["type"] == "missing" else short(first["input"])
        message = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
        wanted = "a value" if first["type"] == "missing" else message
        raise FolderDamaged(path, f"for {where} {wanted}", found) from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name}, which is no JSON")


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("one key twice in a table")
    return table


# -- what a manifest is --------------------------------------------------------------------------
def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("printable text")
    return text


def _encodable(text: str) -> str:
    text.encode()  # half of a surrogate pair is no text
    return text


Words = Annotated[str, AfterValidator(_printable)]
Number = Annotated[float, Field(ge=-1e300, le=1e300, allow_inf_nan=False)]
Epsilon = Annotated[float, Field(ge=0, le=1e300)] | Literal["infinity"]
Delta = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, le=10**15)]


class _Table(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class _Adversary(_Table):
    name: AdversaryName | MaskAdversaryName | Literal["published"]
    text: Words
    epsilon: Epsilon
    delta: Delta
    remark: Words | None = None


class _Privacy(_Table):
    kind: Literal["none", "example-level", "client-level", "correlated"]
    noise_source: Literal["os", "seed"] | None = None
    noise_origins: list[Words] = []
    is_declared: bool = False
    unit: Words = ""
    neighboring_relation: Words = ""
    released: Words = ""
    mechanism: Words = ""
    floating_point: Words = ""
    adversaries: list[_Adversary] = []
    notes: list[Words] = []

    @model_validator(mode="after")
    def _promises_something(self) -> Self:
        told = (self.noise_source, self.unit, self.neighboring_relation, self.adversaries)
        if self.kind != "none" and not all(told):
            raise ValueError("a statement with its noise_source, unit, relation and adversaries")
        return self


class _Final(_Table):
    relative_cost_gap: Number | Literal["infinity", "-infinity"] | None
    gradient_norm: Number | Literal["infinity"] | None
    epsilon: Epsilon | None
    delta: Delta | None
    rounds: Count
    seconds: Number


class Manifest(_Table):
    """What of a manifest anything reads."""

    format: Annotated[int, Field(ge=1, le=10**6)] = 1
    name: Annotated[str, AfterValidator(_encodable)] | None = None
    privacy: _Privacy | None = None
    config: dict[str, Any] | None = None
    config_sha256: Words = ""
    experiment_sha256: Words | None = None
    ledger_run_id: Words | None = None
    stopped: str | None = None
    seconds_by_part: dict[Words, Number] = {}
    final: _Final = _Final.model_construct()


def renamed(manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest with today's keys.

    Up to format 2 ``privacy.adversaries`` was ``views``; ``final.seconds`` was once the time of
    rounds and evaluation alone, with ``seconds_without_evaluation`` beside it.
    """
    return _with_parts(_with_adversaries(manifest))


def _with_parts(manifest: dict[str, Any]) -> dict[str, Any]:
    rounds, final = manifest.get("seconds_without_evaluation"), manifest.get("final")
    whole = final.get("seconds") if isinstance(final, dict) else None
    if not isinstance(rounds, int | float) or not isinstance(whole, int | float):
        return manifest
    others = {k: v for k, v in manifest.items() if k != "seconds_without_evaluation"}
    return {"seconds_by_part": {"rounds": rounds, "evaluation": whole - rounds}} | others


def _with_adversaries(manifest: dict[str, Any]) -> dict[str, Any]:
    privacy = manifest.get("privacy")
    if not isinstance(privacy, dict) or "views" not in privacy or "adversaries" in privacy:
        return manifest
    views, keys = privacy["views"], {"view": "name", "adversary": "text"}
    if isinstance(views, list):
        views = [
            {keys.get(k, k): v for k, v in one.items()} if isinstance(one, dict) else one
            for one in views
        ]
    others = {key: value for key, value in privacy.items() if key != "views"}
    return manifest | {"privacy": others | {"adversaries": views}}


# -- what a checkpoint's words are ---------------------------------------------------------------
Key = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,8})$")]


class _Pending(_Table):
    bytes_down: Count
    bytes_up: Count
    participants: Count
    failures: Count
    late: Count = 0
    unavailable: Count = 0
    absent: Count = 0
    unusable: Count = 0


Stretch = Annotated[list[Count], Field(min_length=2, max_length=2)]


class _Tally(_Table):
    model_config = ConfigDict(strict=True, extra="forbid")

    pending: _Pending
    told: Count
    participants: Count
    failures: Count
    by_client: dict[Key, dict[str, Count]]
    by_kind: dict[Kind, Count] = Field(default_factory=dict[Kind, int])
    missed: dict[Key, dict[Kind, list[Stretch]]] = Field(default_factory=dict[str, Any])


class CheckpointMeta(_Table):
    """What a resumed run takes from its checkpoint beside tensors."""

    last_accepted: dict[Key, Count]
    tally: _Tally | None = None
    config_sha256: Words
    ledger_run_id: Words | None
    ledger_head: Annotated[str, Field(pattern=r"^[0-9]{1,18}:[0-9a-f]{64}$")]
