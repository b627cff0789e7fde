"""The run config of the tiny app, as a program submits it."""

import shlex


def tiny_run_config(clients, out, *overrides):
    """What the tiny app reads: it splits its overrides as a shell would."""
    items = [f"clients={clients}", f"output.directory={out.absolute()}", *overrides]
    return {"experiment": "some.toml", "overrides": shlex.join(items)}
