"""A real SLURM of two nodes on this machine, with all of its state in one directory.

    with Cluster() as cluster:
        cluster.run("sbatch", "--wrap=hostname", "--output=out-%j")

Nothing is written outside of the directory, and no daemon is left behind: the daemons are
children of this process, in the foreground, and end with it.
"""

import contextlib
import getpass
import os
import platform
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "setpriv")
INSTALL = (
    "apt-get install -y --no-install-recommends slurmctld slurmd slurm-client munge"
)
NODES = ("127.0.0.1", "127.0.0.2")
"""Names of nodes that resolve on every Linux without a line in /etc/hosts."""
STARTING = 60.0
STOPPING = 10.0
"""Seconds that daemons have."""

# cred_expire is also how long a requeued job waits, and SLURM takes no less than 6 s.
CONFIG = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket,cred_expire=6
CredType=cred/munge
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool-%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd-%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd-%n.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=1
SlurmdTimeout=6
MessageTimeout=5
InactiveLimit=0
KillWait=5
MinJobAge=300
SchedulerParameters=sched_interval=1,batch_sched_delay=0,sched_min_interval=100000
JobRequeue=1
SlurmdParameters=config_overrides
NodeName={nodes[0]} NodeHostname={host} Port={ports[1]} CPUs=2 RealMemory=4000 State=UNKNOWN
NodeName={nodes[1]} NodeHostname={host} Port={ports[2]} CPUs=2 RealMemory=4000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing_programs() -> list[str]:
    """Lists the programs of SLURM that this machine lacks."""
    return [
        name for name in PROGRAMS if shutil.which(name, path=_search_path()) is None
    ]


def _search_path():
    # Daemons stand in sbin, which users other than root often do not have in their PATH.
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


class Cluster:
    """Two nodes, of two CPUs each, that run jobs while the `with` block lasts."""

    def __init__(self):
        # Not pytest's own directory: a socket's path has at most 107 bytes.
        self.directory = Path(tempfile.mkdtemp(prefix="slurm-"))
        # The key is private by its own permissions; clients must reach the socket.
        self.directory.chmod(0o755)
        self.nodes = NODES
        self.env: Mapping[str, str] = {
            **os.environ,
            "PATH": _search_path(),
            "SLURM_CONF": str(self.directory / "slurm.conf"),
        }
        """For processes that are to reach this cluster."""
        self._daemons: dict[str, subprocess.Popen] = {}

    def __enter__(self):
        try:
            self._configure()
            self._start_munged()
            self._start_controller()
            for node in self.nodes:
                self.start_slurmd(node)
            self.wait_for(
                lambda: set(self.states()) == {"idle"}, "idle nodes", STARTING
            )
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def squeue(self) -> list[list[str]]:
        """Lists [job or job_task, state, node] of all jobs, those that ended last 5 minutes."""
        formatted = "--format=%i|%T|%N"
        lines = self.run(
            "squeue",
            "--all",
            "--noheader",
            "--states=all",
            "--array",
            formatted,
        )
        return [line.split("|") for line in lines.splitlines()]

    def states(self) -> list[str]:
        """Returns each node's state, as idle."""
        lines = self.run("sinfo", "--noheader", "--Node", "--format=%T").splitlines()
        return [line.strip() for line in lines]

    def wait_for(
        self, holds: Callable[[], object], what: str, seconds: float = 60.0
    ) -> None:
        """Waits until `holds()` is true; raises TimeoutError with the logs otherwise."""
        deadline = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > deadline:
                raise TimeoutError(f"no {what} within {seconds:.0f} s\n{self._logs()}")
            time.sleep(0.1)

    def set_down(self, node: str) -> None:
        """Takes a node out, as an administrator does; its jobs go back to the queue."""
        self.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")

    def resume(self, node: str) -> None:
        """Gives a node back to the cluster."""
        self.run("scontrol", "update", f"NodeName={node}", "State=RESUME")

    def kill_slurmd(self, node: str) -> None:
        """Kills a node's daemon; its jobs run on, and the node is down in some 10 s."""
        self._end(f"slurmd-{node}", signal.SIGKILL)

    def kill_node(self, node: str) -> None:
        """Kills a node's daemon and all processes of its jobs, as a lost machine would."""
        self.kill_slurmd(node)
        self._kill_processes(f"SLURMD_NODENAME={node}")

    def start_slurmd(self, node: str) -> None:
        """Starts a node's daemon."""
        # The steps that it starts inherit the variable, which `kill_node` looks for.
        node_env = {**self.env, "SLURMD_NODENAME": node}
        self._start(f"slurmd-{node}", "slurmd", "-D", "-N", node, env=node_env)

    def restart_controller(self) -> None:
        """Ends the controller and starts it again; jobs run on and it knows them."""
        self._end("slurmctld", signal.SIGTERM)
        self._start_controller()

    def restore(self) -> None:
        """Cancels all jobs, and has every daemon run and every node idle again."""
        self._cancel()
        for node in self.nodes:
            if f"slurmd-{node}" not in self._daemons:
                self.start_slurmd(node)
        for node, state in zip(self.nodes, self.states(), strict=True):
            if state.startswith(("down", "drain")):
                # It may have come back by itself since.
                with contextlib.suppress(RuntimeError):
                    self.resume(node)
        self.wait_for(lambda: set(self.states()) == {"idle"}, "idle nodes", STARTING)

    def run(self, *command: str | Path) -> str:
        """Runs a command of SLURM; returns its output, or raises RuntimeError with it."""
        ended = subprocess.run(
            [*map(str, command)],
            env=self.env,
            capture_output=True,
            text=True,
        )
        if ended.returncode:
            raise RuntimeError(f"{command}: {ended.stdout}{ended.stderr}")
        return ended.stdout

    def stop(self) -> None:
        """Ends all jobs and daemons, and removes the directory."""
        with contextlib.suppress(RuntimeError):
            if "slurmctld" in self._daemons:
                self._cancel()
        # The nodes first: without them the controller starts no job again.
        for name in reversed([*self._daemons]):
            self._end(name, signal.SIGTERM)
        # Those of jobs, whose environment names this cluster.
        self._kill_processes()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _cancel(self):
        self.run("scancel", "--full", f"--user={getpass.getuser()}")

    def _configure(self):
        key = self.directory / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        for name in ("state", *(f"spool-{node}" for node in self.nodes)):
            (self.directory / name).mkdir()
        text = CONFIG.format(
            directory=self.directory,
            host=platform.node().partition(".")[0],
            nodes=self.nodes,
            ports=_free_ports(3),
            user=getpass.getuser(),
        )
        Path(self.env["SLURM_CONF"]).write_text(text)

    def _start_munged(self):
        files = dict(key="key", pid="pid", log="log", seed="seed")
        arguments = [
            f"--{name}-file={self.directory}/munge.{end}" for name, end in files.items()
        ]
        # --force, because directories above may belong to others, as /tmp does.
        munged = (
            "munged",
            "--foreground",
            "--force",
            f"--socket={self.directory}/munge.socket",
        )
        self._start("munged", *munged, *arguments)
        self.wait_for((self.directory / "munge.socket").exists, "munged", STARTING)

    def _start_controller(self):
        self._start("slurmctld", "slurmctld", "-D")

        def answers():
            ping = subprocess.run(
                ["scontrol", "ping"], env=self.env, capture_output=True, text=True
            )
            return "is UP" in ping.stdout

        self.wait_for(answers, "slurmctld", STARTING)

    def _start(self, name, *command, env=None):
        log = self.directory / f"{name}.out"
        # With --pdeathsig a daemon ends with this process, however that ends.
        with log.open("ab") as file:
            self._daemons[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig=TERM", "--", *command],
                env=env or self.env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _end(self, name, number):
        daemon = self._daemons.pop(name)
        daemon.send_signal(number)
        try:
            daemon.wait(STOPPING)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()

    def _kill_processes(self, *variables):
        """Kills the processes whose environment has all `variables`, and this cluster."""
        wanted = {f"SLURM_CONF={self.env['SLURM_CONF']}", *variables}
        processes = []
        for directory in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                environment = (directory / "environ").read_bytes()
                if wanted <= {*environment.decode(errors="replace").split("\0")}:
                    processes.append(int(directory.name))
        # All are stopped first: else one reports the death of another as a job's failure.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for process in processes:
                with contextlib.suppress(OSError):
                    os.kill(process, number)

    def _logs(self):
        names = sorted([*self.directory.glob("*.log"), *self.directory.glob("*.out")])
        return "\n".join(f"{path.name}:\n{path.read_text()[-2000:]}" for path in names)


def _free_ports(count):
    """Returns ports that are free now, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("", 0))
        return [one.getsockname()[1] for one in sockets]
