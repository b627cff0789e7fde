"""Why a client's reply is not used, in one word each; readable without torch."""

from typing import Literal, get_args

Kind = Literal["late", "unavailable", "absent", "unusable"]
"""What `Failure` of federation/replies.py says of each."""
KINDS: tuple[Kind, ...] = get_args(Kind)
