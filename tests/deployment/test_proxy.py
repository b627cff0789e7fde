"""The nginx of deploy/ in front of a SuperLink: SuperNodes pass, nothing else does."""

import os
import socket
import ssl
from pathlib import Path

import pytest

from app import deployment
from app.credentials import found_or_made
from app.processes import CONNECTION, LOOPBACK, free_ports, private_flower
from app.superlink import start_superlink, submit
from manifed.errors import EngineFailed
from tests.deployment.tiny_run_config import tiny_run_config

SITE = Path(__file__).parents[2] / "deploy" / "nginx" / "manifed.conf"
AROUND = """daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log stderr notice; {user}
events {{}}
http {{
    access_log {folder}/access.log;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/manifed.conf;
}}
"""
CLOSED = [
    "POST /v1/control/start-run",
    "POST /v1/control/register-node",
    "POST /v1/runtime/acquire-task",
    "POST /v1/fleet/register-node",
    "POST /v1/fleet/unregister-node",
    "GET /v1/fleet/pull-messages",
    "POST /v1/fleet/",
    "POST /v1/fleet/../control/start-run",
    "POST /v1/fleet/pull-messages/../../control/start-run",
    "POST /v1/fleet/%2e%2e/control/start-run",
    "POST /v1/fleet/pull-messages%2f..%2f..%2fcontrol%2fstart-run",
    "POST //v1/control/start-run",
    "POST /V1/FLEET/pull-messages",
    "GET /health",
    "GET /openapi.json",
]


def _proxy(flower, tls, upstream):
    """The proxy with the file of deploy/, other places put in, and its address."""
    (port,) = free_ports(1)
    folder = flower.home / "nginx"
    folder.mkdir()
    text = SITE.read_text()
    for there, here in (
        ("listen 443 ssl;", f"listen {LOOPBACK}:{port} ssl;"),
        ("server 127.0.0.1:47210;", f"server {upstream};"),
        ("/etc/manifed/creds/", f"{tls.ca_certificate.parent}/"),
    ):
        assert there in text
        text = text.replace(there, here)
    (folder / "manifed.conf").write_text(text)
    user = "user root;" if os.geteuid() == 0 else ""
    (folder / "nginx.conf").write_text(AROUND.format(folder=folder, user=user))
    where = ["-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "stderr"]
    nginx = flower.start("nginx", "nginx", *where)
    nginx.wait_for("start worker process ", 30.0)
    return nginx, f"{LOOPBACK}:{port}"


def _status(address, tls, request):
    """The HTTP status of one request, sent byte for byte."""
    host, port = address.split(":")
    trusted = ssl.create_default_context(cafile=str(tls.ca_certificate))
    with (
        socket.create_connection((host, int(port)), 10.0) as plain,
        trusted.wrap_socket(plain, server_hostname=host) as connection,
    ):
        head = (
            f"{request} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        )
        connection.sendall(head.encode())
        return int(connection.makefile("rb").readline().split()[1])


@pytest.mark.deployment
@pytest.mark.slow
@pytest.mark.usefixtures("leaves_nothing")
def test_a_supernode_works_through_the_proxy_and_nothing_else_passes(tiny_project, tmp_path):
    with private_flower(tiny_project) as flower:
        tls = found_or_made(flower.home / "credentials", 1)
        lines = list[str]()
        _, direct = start_superlink(flower, deployment.link_options(tls))
        nginx, proxied = _proxy(flower, tls, direct)

        for request in CLOSED:
            assert _status(proxied, tls, request) in {403, 400}, request
        assert _status(proxied, tls, "POST /v1/fleet/pull-messages") == 415  # by the SuperLink
        assert _status(direct, tls, "GET /health") == 200

        flower.connect(proxied, tls.ca_certificate)
        config = tiny_run_config(1, tmp_path / "out", "rounds=1")
        with pytest.raises(EngineFailed, match="403"):
            submit(flower, config, (), timeout=60.0, on_line=lines.append)
        key = str(tls.supernode_keys[0]) + ".pub"
        with pytest.raises(EngineFailed, match="403"):
            flower.call("flwr", "supernode", "register", key, CONNECTION)

        flower.connect(direct, tls.ca_certificate)
        flower.call("flwr", "supernode", "register", key, CONNECTION)
        deployment.SuperNodes(flower, proxied, deployment.node_configs(1, None), tls, lines.append)
        submit(flower, config, (), timeout=300.0, on_line=lines.append, check=nginx.check)
        passed = (flower.home / "nginx" / "access.log").read_text()
        assert '"POST /v1/fleet/activate-node HTTP/1.1" 200' in passed
        assert '"POST /v1/fleet/push-messages HTTP/1.1" 200' in passed
    assert (tmp_path / "out" / "result.json").is_file()
