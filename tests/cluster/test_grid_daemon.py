"""Test of senergyctld with carbon intensities or prices from a data provider on this host.

senergyctld runs as a process. The CLI shows the fetched values, and quotas that use these values.
"""

from __future__ import annotations

import os
import threading
import time
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from own_controller import as_nobody, wait_for

from slurm_energy.cli.main import main
from slurm_energy.protocol.grid_requests import grid_factors
from slurm_energy.protocol.quota_requests import QUOTA_PATH

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
]
KWH = 3.6e6


class Provider(BaseHTTPRequestHandler):
    """Fake of the British carbon intensity API.

    The fake reports 300 g/kWh for each half hour of the requested time.
    """

    def do_GET(self):
        begin, end = self.path.removeprefix("/intensity/").split("/")
        first, last = (datetime.fromisoformat(text).timestamp() for text in (begin, end))
        rows = [
            f'{{"from": "{text(t)}", "to": "{text(t + 1800)}", "intensity": {{"actual": 300}}}}'
            for t in range(int(first), int(last), 1800)
        ]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f'{{"data": [{", ".join(rows)}]}}'.encode())

    def log_message(self, *_):
        """Write no log."""


def text(unix_s):
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%MZ")


@pytest.fixture
def provider():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_fetched_values_reach_the_command_line(controller, provider, capsys):
    controller.configure(
        f'[carbon]\nprovider = "uk"\nurl = "{provider}"\npue = 1.5\n'
        '[price]\nprovider = "constant"\nper_kwh = 0.2\n'
    )
    controller.start()
    client = controller.client()
    wait_for(lambda: client.get("/v1/status")["grid"][0]["newest_end"] is not None)
    now = time.time()
    result = grid_factors(client, now - 7200, now).footprint([(now - 7200, now - 3600, KWH)])
    assert result.grams == pytest.approx(450.0)
    assert result.cost_amount == pytest.approx(0.3)
    assert "uk GB, every 30 min" in result.basis and "PUE 1.5" in result.basis
    config = ["--config", str(controller.file)]
    assert (
        main(["grid", "show", "-S", "now-3hours", "-E", "now-1hour", "-Pn", "-o", "carbon,price", *config])
        == 0
    )
    assert set(capsys.readouterr().out.split()) == {"300.0|0.2000"}
    assert main(["grid", "fetch", *config]) == 0
    assert "carbon uk GB: values up to" in capsys.readouterr().out

    assert main(["quota", "set", "physics", "5kg", "--hold", "100", *config]) == 0
    capsys.readouterr()
    assert main(["quota", "show", "-Pn", "-o", "account,amount,used,level", *config]) == 0
    assert capsys.readouterr().out == "physics|5.00 kg CO2e|0 g CO2e|within\n"
    assert as_nobody(controller, QUOTA_PATH) == "ok"
    assert controller.stop() == 0
    assert "Traceback" not in controller.log.read_text()
