"""Flower's door to the server: read the config, run the conversation."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from app import server_run

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment that the run config names."""
    server_run.run(grid, context)
