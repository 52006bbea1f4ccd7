"""Check that senergyctld listens at the address that agents and the CLI use."""

from __future__ import annotations

from collections.abc import Iterator

from slurm_energy.config.addresses import is_loopback, parse_listen, parse_url
from slurm_energy.config.findings import Finding
from slurm_energy.validation.check_context import CheckContext


def check(context: CheckContext) -> Iterator[Finding]:
    """Yield findings about `controller.listen` and `cluster.controller_url` if the two do not match."""
    listen, url = context.config.controller.listen, context.config.cluster.controller_url
    listen_host, listen_port = parse_listen(listen)
    url_host, url_port = parse_url(url)
    if is_loopback(listen_host) and not is_loopback(url_host):
        yield context.error(
            "controller",
            "listen",
            f"'{listen}' is reachable on the controller only, but cluster.controller_url is '{url}'",
            f"listen on an address of the cluster network, or on 0.0.0.0:{url_port}",
        )
    if is_loopback(url_host) and not is_loopback(listen_host):
        yield context.warning(
            "cluster",
            "controller_url",
            f"'{url}' is each node's own address, but senergyctld listens on '{listen}'",
            f"write http://CONTROLLER:{listen_port or url_port}",
        )
    # Port 0 is any free port, which only the log shows.
    if listen_port == 0:
        yield context.warning(
            "controller", "listen", f"'{listen}' is a different port at each start", "name a port"
        )
    elif listen_port != url_port:
        both = context.is_set("controller", "listen") and context.is_set("cluster", "controller_url")
        finding = context.error if both else context.warning
        yield finding(
            "controller" if context.is_set("controller", "listen") else "cluster",
            "listen" if context.is_set("controller", "listen") else "controller_url",
            f"senergyctld listens on port {listen_port}, but cluster.controller_url is '{url}'",
            "use the same port in both",
        )
