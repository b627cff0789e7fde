"""Trains for some rounds and saves the model."""

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from manifed.flower.guard import guard

app = ServerApp()


@app.main()
def main(grid, context):
    strategy = FedAvg(fraction_train=float(context.run_config["fraction-train"]))
    strategy = guard(
        strategy, population=4, clip=1.0, noise_multiplier=1.0, delta=1e-3, max_epsilon=20.0,
        cohort="fixed-size", evaluate="skip", ledger="ledger.jsonl",
    )  # fmt: skip
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord([np.zeros((1, 8)), np.zeros(1)]),
        num_rounds=int(context.run_config["num-server-rounds"]),
    )
    np.savez("final_model.npz", *result.arrays.to_numpy_ndarrays())
    print(strategy.text)
    strategy.close()
