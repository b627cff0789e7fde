"""Trains for some rounds and saves the model."""

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAdam

from mine.task import network

app = ServerApp()


@app.main()
def main(grid, context):
    np.random.seed(7)  # noqa: NPY002 - as apps do
    strategy = FedAdam(fraction_train=float(context.run_config["fraction-train"]))
    strategy = DifferentialPrivacyServerSideFixedClipping(
        strategy, noise_multiplier=1.0, clipping_norm=1.0, num_sampled_clients=2
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(network().state_dict()),
        train_config=ConfigRecord({"lr": float(context.run_config["lr"])}),
        num_rounds=int(context.run_config["num-server-rounds"]),
    )
    torch.save(result.arrays.to_torch_state_dict(), "final_model.pt")
