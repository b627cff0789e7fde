"""Numbers as people hold them: tensors, numpy arrays, nested lists, frames of pandas or polars.

Each becomes a dense tensor of its own, entry by entry: no entry is changed by another one, nothing
is scaled, filled or dropped, and texts are not read as numbers. Real numbers of numpy and torch
keep their type; lists are float64, integers int64. A frame is known by what it can do, so neither
library is imported.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manifed.errors import ConfigError, described, short


def tensor_of(value: object, name: str) -> Tensor:
    """Returns the numbers that ``value`` holds; the rows of a frame are examples.

    Raises:
        ConfigError: beginning with ``name``, for what holds no real numbers of one shape.
    """
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.is_meta or value.is_complex():
            raise ConfigError(
                f"{name}: expected a dense tensor of real numbers, got {value.dtype} of shape "
                f"{tuple(value.shape)} ({value.layout} on {value.device})"
            )
        return value.detach().as_subclass(Tensor).resolve_neg().contiguous()
    try:
        if isinstance(value, list | tuple) and value and isinstance(value[0], Tensor):
            return torch.stack([tensor_of(one, name) for one in value])
        array = np.asarray(value)
        if array.dtype == object and array.ndim:
            array = np.asarray(array.tolist())
    except Exception as error:  # what converts itself is code of somebody's own
        raise ConfigError(
            f"{name}: expected real numbers, equally many for each example, got "
            f"{type(value).__name__}: {described(error)}"
        ) from None
    kind = array.dtype
    if kind.kind not in "biuf" or np.ma.is_masked(value):
        columns = _columns(value)
        what = f"{type(value).__name__} of {'masked entries' if kind.kind in 'biuf' else kind}"
        if columns:
            what += f" from columns {dict(zip(columns, map(str, value.dtypes), strict=True))}"  # pyright: ignore[reportAttributeAccessIssue]
        elif not array.ndim:
            what = short(value)
        raise ConfigError(
            f"{name}: expected real numbers (a tensor, array, frame or list of them), got {what}"
        )
    if kind.kind in "iu":
        kind = np.result_type(kind, np.int64)
    elif kind.itemsize > 8:
        kind = np.dtype(np.float64)
    with np.errstate(over="ignore"):
        return torch.from_numpy(array.astype(kind.newbyteorder("="), order="C"))


def columns_of(held: object) -> dict[str, list[str]]:
    """Returns the names of the columns of each frame that a client's examples are made of."""
    parts: Mapping[Any, Any] = {"": held}
    if isinstance(held, Mapping):
        parts = held
    elif isinstance(held, tuple):
        parts = dict(enumerate(held))
    return {str(name): columns for name, one in parts.items() if (columns := _columns(one))}


def _columns(value: Any) -> list[str]:
    """The names of a frame's columns; nothing else has any."""
    is_frame = hasattr(value, "columns") and hasattr(value, "dtypes")
    return [str(name) for name in value.columns] if is_frame else []
