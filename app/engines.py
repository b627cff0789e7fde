"""The engines that Flower runs, by their name in a config."""

from collections.abc import Callable, Mapping

from app import deployment, ray

ENGINES: Mapping[str, Callable[..., None]] = {"ray": ray.run, "deployment": deployment.run}
