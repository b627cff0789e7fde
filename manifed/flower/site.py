"""A node whose records lie behind a site's own process: this code forwards, and sees none of them.

Whatever the site refuses, it refuses for its own reasons, which stay in the logs of site and node.
"""

from pathlib import Path

from flwr.app import ArrayRecord, Context, Message

from manifed.experiment.schema import Experiment
from manifed.flower import keys
from manifed.flower.handshake import introduction
from manifed.flower.records import pack, read_header, tensors_from_record, tensors_to_record
from manifed.site.protocol import Introduction, Question, Refusal, Tensors, Update, about, ask


class NoAnswer(RuntimeError):
    """The site did not answer; the text is for the log of this node."""


def introduced(message: Message, context: Context, config: Experiment) -> Message:
    """The reply to the handshake's query, in the site's name.

    Raises:
        NoAnswer, OSError, BadFrame: the site refused, or there is none.
    """
    told, _ = _asked(context, config, about(config), {})
    if not isinstance(told, Introduction):
        raise NoAnswer("the site did not introduce itself")
    said = (told.partition, told.num_examples, told.config_sha256, told.code_sha256)
    return Message(introduction(*said), reply_to=message)


def answered(message: Message, context: Context, config: Experiment) -> Message:
    """The reply to a training message, as the site noised it; errors as `introduced`."""
    header = read_header(message.content)
    arrays = message.content.get(keys.PAYLOAD, ArrayRecord())
    down = tensors_from_record(arrays) if isinstance(arrays, ArrayRecord) else {}
    question = about(config, str(context.run_id), header)
    told, up = _asked(context, config, question, down)
    if not isinstance(told, Update):
        raise NoAnswer("the site did not answer with an update")
    content = pack(header, None, noise_origin=told.noise_origin)
    content[keys.PAYLOAD] = tensors_to_record(dict(up))
    return Message(content, reply_to=message)


def _asked(
    context: Context, config: Experiment, question: Question, down: Tensors
) -> tuple[Introduction | Update, Tensors]:
    path = Path(str(context.node_config[keys.SITE_SOCKET]))
    told, up = ask(path, question, down, config.federation.replies.timeout)
    if isinstance(told, Refusal):
        raise NoAnswer(f"the site refused: {told.reason}")
    return told, up
