"""The ClientApp of an experiment, and what a node forwards where a site's process has the records.

Where a node's records lie behind a site's own process, this code forwards and sees none of them.
What the site refuses, it refuses for its own reasons, which stay in the logs of site and node.
"""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path

from flwr.app import ArrayRecord, Context, RecordDict
from flwr.clientapp import ClientApp

from manifed.experiment.schema import Experiment
from manifed.federation.exchange import Header
from manifed.flower.grids import InlineGrid
from manifed.flower.handshake import Introduction
from manifed.flower.records import PAYLOAD, pack, tensors_from_record, tensors_to_record
from manifed.site import protocol

SITE_SOCKET = "site-socket"
"""In a node's own config: where the site's own process listens, which has the data."""
_CLIENTS = "manifed.flower.clients.local_training"
"""In a checkout this is in the folder `clients` beside the library."""


def client_app_of(experiment: Callable[[Context], Experiment]) -> ClientApp:
    """Makes the ClientApp of nodes that take part in the experiment of their context.

    A node whose own config names ``site-socket`` forwards to the site's process there.
    """
    apps = import_module(_CLIENTS)
    return apps.app_of(lambda context: apps.node_of(experiment(context), context), experiment)


def inline_grid(config: Experiment) -> InlineGrid:
    """Makes the grid of an experiment whose every node is in this process."""
    apps = import_module(_CLIENTS)
    app = apps.app_of(partial(apps.node_of, config), lambda _: config)
    return InlineGrid(app, config.federation.num_clients, {})


def site_introduction(context: Context, config: Experiment) -> Introduction:
    """Returns what the site says of itself; errors as `site_answer`."""
    told, _ = _asked(context, config, None, {})
    if not isinstance(told, protocol.Introduction):
        raise RuntimeError("the site did not introduce itself")
    return Introduction(told.partition, told.num_examples, told.config_sha256, told.code_sha256)


def site_answer(
    content: RecordDict, header: Header, context: Context, config: Experiment
) -> RecordDict:
    """Returns the site's reply to a training message, which the site noised itself.

    Raises:
        RuntimeError, OSError, BadFrame: the site refused, or there is none.
    """
    arrays = content.get(PAYLOAD)
    down = tensors_from_record(arrays) if isinstance(arrays, ArrayRecord) else {}
    told, up = _asked(context, config, header, down)
    if not isinstance(told, protocol.Update):
        raise RuntimeError("the site did not answer with an update")
    return pack(header, tensors_to_record(up), noise_origin=told.noise_origin)


def _asked(
    context: Context, config: Experiment, header: Header | None, down: protocol.Tensors
) -> tuple[protocol.Introduction | protocol.Update, protocol.Tensors]:
    path = Path(str(context.node_config[SITE_SOCKET]))
    question = protocol.about(config, str(context.run_id), header)
    told, up = protocol.ask(path, question, down, config.federation.replies.timeout)
    if isinstance(told, protocol.Refusal):
        raise RuntimeError(f"the site refused: {told.reason}")
    return told, up
