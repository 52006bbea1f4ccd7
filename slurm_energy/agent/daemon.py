"""The running agent: one event loop, one worker thread for everything that touches hardware or disk."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import traceback
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from slurm_energy import atomic_file, service_manager
from slurm_energy.agent.jobs.job_manager import Engine
from slurm_energy.agent.sockets.server import Server, refuse_if_answered
from slurm_energy.agent.state.deferred_messages import Missed
from slurm_energy.agent.state.delivery import Delivery
from slurm_energy.agent.state.state_directory import StateDir, lock_file
from slurm_energy.agent.worker_thread import Regular, Worker
from slurm_energy.config import Config
from slurm_energy.devices.discovery import NodeDevices, discover
from slurm_energy.devices.node.power_options import node_power_options
from slurm_energy.errors import EnergyError, UnavailableError
from slurm_energy.log_once import Complaints
from slurm_energy.slurm.hook_environment import this_node
from slurm_energy.trusted_files import check_folder
from slurm_energy.validation import DaemonRole, load_for_daemon

log = logging.getLogger(__name__)

_HOUSEKEEPING_S = 10.0
_FLUSH_DELAY_S = 0.2
_FLUSH_AGAIN_S = 5.0
_FIRST_READING_S = 0.5
_AGAIN_S = 1.0
_MOST_KINDS_OF_ERRORS = 20


def load_config(argument: str | None) -> Config:
    """Read and check the configuration as a process with root's power must.

    Raises:
        ConfigError: see `validation.load_for_daemon`.
    """
    return load_for_daemon(argument, DaemonRole.NODE, log)


class Daemon:
    """senergyd from start to stop.

    Args:
        config: the configuration.
        argument: --config as given, for reloading.
        manager: the service manager to notify.
        log_level: --log-level as given; None: the configuration's.
    """

    def __init__(
        self,
        config: Config,
        argument: str | None = None,
        manager: service_manager.ServiceManager | None = None,
        log_level: str | None = None,
    ) -> None:
        self._config = config
        self._argument = argument
        self._manager = manager or service_manager.ServiceManager()
        self._log_level = log_level
        self._worker = Worker("engine")
        self._stop = asyncio.Event()
        self._written = asyncio.Event()
        self._late = asyncio.Event()
        self._complaints = Complaints()
        self._told: set[str] = set()

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT.

        Raises:
            EnergyError: could not start.
        """
        socket_path = self._config.agent.socket
        await refuse_if_answered(socket_path)
        lock = _socket_lock(socket_path)
        state = StateDir(self._config.agent.state_dir)
        loop = asyncio.get_running_loop()
        try:
            self._engine = await self._work(lambda: Engine(self._config, self._discover(), state))
            engine = self._engine
            self._delivery = Delivery(engine.spool, self._config.cluster, lambda: engine.node, self._work)
            engine.on_change = lambda: loop.call_soon_threadsafe(self._written.set)
            self._manager.status("Restoring settings of jobs that are over")
            await self._work(engine.start)
            self._missed = await self._work(Missed, socket_path, engine)
            await self._work(self._missed.replay)
            await self._serve(engine, socket_path)
        except OSError as error:
            raise UnavailableError(
                f"{error.filename or state.folder}", error.strerror or str(error)
            ) from None
        finally:
            self._worker.shutdown()
            os.close(lock)

    def _discover(self) -> NodeDevices:
        devices = discover(meter=node_power_options(self._config.node_power, this_node()))
        devices.wait_for_readings(_FIRST_READING_S)
        return devices

    async def _serve(self, engine: Engine, socket_path: Path) -> None:
        server = Server(engine, self._serve_work, self._missed.replay)
        await server.open(socket_path)
        self._handle_signals()
        runs = (self._keep_house, self._delivery.run, self._flush, self._catch_up)
        tasks = [asyncio.create_task(self._for_ever(run)) for run in runs]
        tasks.append(asyncio.create_task(self._manager.keep_alive()))
        failed = partial(self._tell, "sampling")
        self._worker.repeat(Regular(engine.tick, lambda: engine.sampling_interval_s, failed))
        if engine.behind:
            self._late.set()
        log.info("senergyd serves %s at %s", engine.node, socket_path)
        self._manager.ready(f"Serving {engine.node} at {socket_path}")
        await self._stop.wait()
        self._manager.stopping()
        await server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._worker.repeat(None)
        await self._work(engine.stop)
        log.info("senergyd stopped; settings of running jobs stay until they end")

    async def _for_ever(self, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin again what fails: an error of ours in one task must not take away what the others do."""
        while True:
            try:
                await run()
            except Exception as error:
                self._tell(getattr(run, "__qualname__", "task"), error)
            await asyncio.sleep(_AGAIN_S)

    def _tell(self, what: str, error: Exception) -> None:
        """Log an error of ours; the same is not logged again."""
        kind = f"{what} {type(error).__name__} {traceback.extract_tb(error.__traceback__)[-1]}"
        if kind not in self._told and len(self._told) < _MOST_KINDS_OF_ERRORS:
            self._told.add(kind)
            log.error("%s failed and goes on; the same is not logged again", what, exc_info=error)

    async def _work(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._worker, function, *arguments)

    async def _serve_work(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return await self._work(function, *arguments)
        finally:
            if self._engine.behind:
                self._late.set()

    async def _catch_up(self) -> None:
        """Set what a step made possible once it has its answer, which it must not wait for."""
        while True:
            await self._late.wait()
            self._late.clear()
            await self._work(self._engine.catch_up)

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(_HOUSEKEEPING_S)
            await self._serve_work(self._do_what_waits)

    def _do_what_waits(self) -> None:
        self._missed.replay()
        self._engine.housekeeping()

    async def _flush(self) -> None:
        """Write records and force files to disk a moment later, so that no hook waits for that."""
        while True:
            await self._written.wait()
            await asyncio.sleep(_FLUSH_DELAY_S)
            self._written.clear()
            flush = await self._work(self._engine.tidy)
            try:
                await asyncio.to_thread(atomic_file.flush, flush.files)
            except OSError as error:
                self._complaints.tell("agent.state_dir", f"cannot be forced to disk, tried again: {error}")
                await self._work(partial(self._engine.flushed, flush, succeeded=False))
                asyncio.get_running_loop().call_later(_FLUSH_AGAIN_S, self._written.set)
            else:
                self._complaints.settle("agent.state_dir", "can be forced to disk again")
                await self._work(self._engine.flushed, flush)
            self._delivery.wake()

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload)

    def _reload(self) -> None:
        """Take a new configuration; a bad one changes nothing."""
        with self._manager.reload():
            self._take_new_configuration()

    def _take_new_configuration(self) -> None:
        try:
            new = load_config(self._argument)
        except EnergyError as error:
            for line in error.lines:
                log.error("configuration not reloaded: %s", line)
            return
        old = self._config.agent
        if (new.agent.socket, new.agent.state_dir) != (old.socket, old.state_dir):
            log.warning("agent.socket and agent.state_dir change with the next start")
        self._config = new
        service_manager.set_log_level(self._log_level or new.agent.log_level)
        self._delivery.cluster = new.cluster
        self._worker.submit(self._engine.reconfigure, new)
        log.info("configuration reloaded from %s", new.path or "defaults")


def _socket_lock(path: Path) -> int:
    """Make sure that only one agent serves a socket, in a directory where nobody else can put one.

    Raises:
        AlreadyRunningError: another one does.
        ConfigError: others could exchange the socket.
        UnavailableError: the directory cannot be used.
    """
    try:
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True)
            path.parent.chmod(0o755)  # users reach the socket, whatever our umask
        check_folder(path.parent)
        return lock_file(path.with_name(path.name + ".lock"))
    except OSError as error:
        raise UnavailableError(
            f"agent.socket {path}", error.strerror or str(error), f"make {path.parent} writable for the agent"
        ) from None
