"""Logistic regression of scikit-learn on the rows of one client."""

import warnings

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.linear_model import LogisticRegression

from mine.task import rows

app = ClientApp()


def received(message, context):
    """The model that came, and this client's rows."""
    model = LogisticRegression(max_iter=1, warm_start=True)
    model.coef_, model.intercept_ = message.content["arrays"].to_numpy_ndarrays()
    model.classes_ = np.array([0, 1])
    x, y = rows(int(context.node_config["partition-id"]))
    return model, x.numpy().astype(float), y.numpy()


@app.train()
def train(message, context):
    model, x, y = received(message, context)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one step has not converged
        model.fit(x, y)
    metrics = MetricRecord({"num-examples": len(y)})
    content = RecordDict(
        {"arrays": ArrayRecord([model.coef_, model.intercept_]), "metrics": metrics}
    )
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message, context):
    model, x, y = received(message, context)
    metrics = MetricRecord({"eval_acc": model.score(x, y), "num-examples": len(y)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
