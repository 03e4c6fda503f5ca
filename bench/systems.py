"""File systems to measure beside one another: each starts its servers in a directory of its own, mounts itself on as many
mount points as asked for, and `stop` takes everything away again, however far `start` came. Only processes that were
started here are ended.

    systems.py gluster:KIND DIR     holds one in DIR for a script: prints its mount point; a line on standard input mounts
                                    it anew (its client's caches are empty then) and is answered the same way; ends with the input
"""
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))


def run(*command, timeout=120):
    done = subprocess.run(command, timeout=timeout, text=True, capture_output=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr or done.stdout}")
    return done.stdout


def script(main):
    """A script's end: by a signal to end and by Ctrl-C it takes away what it made first."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)


def cpu_seconds():
    """Of the machine: busy, idle."""
    with open("/proc/stat") as stat:
        user, nice, system, idle, wait, irq, soft = map(int, stat.readline().split()[1:8])
    tick = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + soft) / tick, (idle + wait) / tick


def cpu_of(pid):
    """CPU seconds that a process has taken so far."""
    with open(f"/proc/{pid}/stat") as stat:
        ticks = stat.read().rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def wait_for(what, ready, seconds=30):
    until = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > until:
            raise TimeoutError(f"{what}: not there after {seconds} s")
        time.sleep(0.01)


def resident(pids):
    """Bytes of memory that processes hold."""
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/statm") as statm:
            total += int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return total


def remove(directory):
    """A directory that was made here; never through something that is still mounted in it."""
    with open("/proc/self/mounts") as mounts:
        within = [line.split()[1] for line in mounts if line.split()[1].startswith(os.path.realpath(directory) + "/")]
    if within:
        raise RuntimeError(f"still mounted: {' '.join(within)}")
    if os.path.exists(directory):
        shutil.rmtree(directory)


class Local:
    """A directory of this machine: the raw ceiling."""

    name, durability, missing = "local", "nothing is durable before fsync", None
    sync_names = False
    sync = ["sync", "-f"]

    def __init__(self, base, mounts):
        self.mounts = [os.path.join(base, "local")] * mounts

    def start(self):
        os.makedirs(self.mounts[0])

    def stop(self):
        remove(self.mounts[0])

    def servers(self):
        return []


class LocalSynced(Local):
    """The same with every name made durable by fsync of its directory, as Ropewalk's are: the raw ceiling of that promise."""

    name, durability = "local, synced", "names durable: fsync of the directory after each"
    sync_names = True


class PassThrough:
    """The ceiling of FUSE: a mount that keeps everything in its process's memory (crates/fuse/examples/memfs.rs)."""

    name, durability = "FUSE alone", "nothing is ever durable"
    binary = os.environ.get("MEMFS", os.path.join(HERE, "../target/release/examples/memfs"))
    missing = None if os.access(binary, os.X_OK) else f"{binary} is not built (cargo build --release --workspace --example memfs)"

    def __init__(self, base, mounts):
        self.mount, self.child = os.path.join(base, "fuse"), None
        self.mounts = [self.mount] * mounts

    def start(self):
        os.makedirs(self.mount)
        self.child = subprocess.Popen([self.binary, self.mount], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(self.mount, lambda: os.path.ismount(self.mount))

    def servers(self):
        return []

    def stop(self):
        if os.path.ismount(self.mount):
            run("umount", self.mount)
        if self.child:
            self.child.terminate()
            self.child.wait(30)
        remove(self.mount)


class Ropewalk:
    """4 nodes with 2 pdisks each, on this machine."""

    binary = os.environ.get("ROPEWALK", os.path.join(HERE, "../target/release/ropewalk"))
    missing = None if os.access(binary, os.X_OK) else f"{binary} is not built (make build)"
    sync = [binary, "sync"]

    def __init__(self, base, mounts, code="4+2p", names="ahead"):
        self.name = f"ropewalk {code}" + (f" names={names}" if names != "ahead" else "")
        durable = {"durable": "when the call returns", "ahead": "with fsync, else within a second"}[names]
        self.durability = f"names durable {durable}; data and attributes with fsync, else within seconds"
        self.options = ["--names", names]
        self.base, self.code = os.path.join(base, "ropewalk"), code
        self.mounts = [os.path.join(self.base, f"mnt{i}") for i in range(mounts)]

    def start(self):
        for mount in self.mounts:
            os.makedirs(mount)
        self.up("--nodes", "4", "--pdisks", "2", "--pdisk-size", "2g", "--code", self.code, "--block-size", "4m")
        for mount in self.mounts:
            self.ropewalk("mount", *self.options, "fs1", mount)

    def ropewalk(self, *words):
        return run(self.binary, *words, "--dir", os.path.join(self.base, "c"))

    def up(self, *args):
        self.ropewalk("up", "--detach", *args)

    def only(self, count):
        """Leaves so many mounts in place; alone, a mount has its caches to itself."""
        for index, mount in enumerate(self.mounts):
            if index < count and not os.path.ismount(mount):
                self.ropewalk("mount", *self.options, "fs1", mount)
            elif index >= count and os.path.ismount(mount):
                run(self.binary, "umount", mount)

    def servers(self):
        with open(os.path.join(self.base, "c/run/manager.pid")) as pid:
            return [int(pid.readline())]

    def costs(self):
        """Messages of the first mount to the manager so far, and seconds of CPU that the manager has taken."""
        status = json.loads(self.ropewalk("net", "status", "--json"))
        mount = next(p for p in status if p["process"] == os.path.realpath(self.mounts[0]))
        manager = next(peer for peer in mount["answer"] if peer["node"] == 0)
        messages = sum(connection["frames_sent"] for connection in manager["connections"])
        return messages, cpu_of(self.servers()[0])

    def restart(self):
        """Kills the manager and starts it again."""
        os.kill(self.servers()[0], signal.SIGKILL)
        self.up()

    def stop(self):
        if os.path.exists(os.path.join(self.base, "c")):
            self.ropewalk("down")
        remove(self.base)


HOST, GLUSTERD_PORT = "127.0.0.3", 24007
GLUSTERD = """volume management
    type mgmt/glusterd
    option working-directory {base}/glusterd
    option run-directory {base}/run
    option glusterd-sockfile {base}/glusterd.sock
    option transport-type socket
    option transport.socket.bind-address {host}
    option transport.address-family inet
    option max-port 60999
end-volume
"""


class Gluster:
    """Bricks on this machine, volume options as they come."""

    durability = "nothing is durable before fsync"
    missing = None if shutil.which("glusterd") and shutil.which("glusterfs") else "apt-get install glusterfs-server"
    kinds = {"plain": (1, []), "disperse": (6, ["disperse", "6", "redundancy", "2"]), "replica": (3, ["replica", "3"])}

    def __init__(self, base, mounts, kind="disperse"):
        self.name = f"gluster {kind}"
        self.base, self.children, self.clients = os.path.join(base, "gluster"), [], {}
        self.mounts = [os.path.join(self.base, f"mnt{i}") for i in range(mounts)]
        self.bricks, self.layout = self.kinds[kind]

    def start(self):
        with socket.socket() as probe:
            if probe.connect_ex((HOST, GLUSTERD_PORT)) == 0:
                raise RuntimeError(f"{HOST}:{GLUSTERD_PORT} is in use: a glusterd runs here already, and two cannot; end it first")
        bricks = [os.path.join(self.base, f"b{i}") for i in range(self.bricks)]
        for directory in [os.path.join(self.base, "glusterd"), os.path.join(self.base, "run"), *bricks, *self.mounts]:
            os.makedirs(directory)
        with open(os.path.join(self.base, "glusterd.vol"), "w") as config:
            config.write(GLUSTERD.format(base=self.base, host=HOST))
        self.spawn("glusterd", "-N", "-f", f"{self.base}/glusterd.vol", "-p", f"{self.base}/pid", "-l", f"{self.base}/log")
        wait_for("glusterd", lambda: self.answers("volume", "list"))
        self.gluster("volume", "create", "v", *self.layout, *[f"{HOST}:{brick}" for brick in bricks], "force")
        self.gluster("volume", "start", "v")
        self.only(len(self.mounts))

    def spawn(self, *command):
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        self.children.append(child)
        return child

    def gluster(self, *args):
        return run("gluster", "--mode=script", f"--glusterd-sock={self.base}/glusterd.sock", *args)

    def answers(self, *args):
        try:
            self.gluster(*args)
            return True
        except RuntimeError:
            return False

    def only(self, count):
        for index, mount in enumerate(self.mounts):
            if index < count and mount not in self.clients:
                arguments = [f"--volfile-server={HOST}", "--volfile-id=/v", "-l", f"{self.base}/client.log", mount]
                self.clients[mount] = self.spawn("glusterfs", "-N", *arguments)
                wait_for(mount, lambda: os.path.ismount(mount))
                os.listdir(mount)
            elif index >= count and mount in self.clients:
                run("umount", mount)
                self.clients.pop(mount).wait(30)

    def servers(self):
        """The processes of the bricks: those of this machine that name our directory and serve a brick."""
        pids = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as cmdline:
                    command = cmdline.read().split(b"\0")
            except OSError:
                continue
            if os.path.basename(command[0]) == b"glusterfsd" and any(self.base.encode() in part for part in command):
                pids.append(int(pid))
        return pids

    def restart(self):
        killed = self.servers()
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        # It may take a moment until glusterd believes that they are gone.
        wait_for("bricks", lambda: self.answers("volume", "start", "v", "force") and len(self.servers()) == len(killed))

    def stop(self):
        self.only(0)
        if self.answers("volume", "stop", "v", "force"):
            self.gluster("volume", "delete", "v")
        for child in self.children:
            child.terminate()
            child.wait(30)
        remove(self.base)


class Moose:
    """One master and one chunk server. It refuses servers on loopback addresses: they and the mount are in a network namespace of their own."""

    name, durability = "moosefs", "nothing is durable, not with fsync either"
    missing = None if shutil.which("mfsmaster") and shutil.which("mfsmount") else "apt-get install moosefs-master moosefs-chunkserver moosefs-client"
    net, address = f"ropewalk-moose-{os.getpid()}", "10.77.0.1"
    within = ["nsenter", f"--net=/run/netns/{net}"]

    def __init__(self, base, mounts):
        self.base, self.children, self.clients = os.path.join(base, "moose"), [], {}
        self.mounts = [os.path.join(self.base, f"mnt{i}") for i in range(mounts)]

    def start(self):
        for name in ["master", "chunks", "data", *self.mounts]:
            os.makedirs(os.path.join(self.base, name))
        run("ip", "netns", "add", self.net)
        run("ip", "-n", self.net, "link", "set", "lo", "up")
        run("ip", "-n", self.net, "addr", "add", f"{self.address}/32", "dev", "lo")
        self.write("master/metadata.mfs", "MFSM NEW")
        self.write("exports", "* / rw,alldirs,admin,maproot=0:0\n")
        self.write("topology", "0 ; default\n")
        self.write("disks", f"{self.base}/data\n")
        user = "WORKING_USER = root\nWORKING_GROUP = root\n"
        listen = "".join(f"{what}_LISTEN_HOST = {self.address}\n" for what in ["MATOML", "MATOCS", "MATOCL"])
        files = f"EXPORTS_FILENAME = {self.base}/exports\nTOPOLOGY_FILENAME = {self.base}/topology\n"
        self.write("master.cfg", f"{user}DATA_PATH = {self.base}/master\n{files}{listen}")
        to = f"MASTER_HOST = {self.address}\nBIND_HOST = {self.address}\nCSSERV_LISTEN_HOST = {self.address}\n"
        self.write("chunks.cfg", f"{user}DATA_PATH = {self.base}/chunks\nHDD_CONF_FILENAME = {self.base}/disks\n{to}")
        self.children.append(self.spawn("mfsmaster", "-f", "-c", f"{self.base}/master.cfg", "start"))
        wait_for("the master", lambda: self.answers(9420))
        self.children.append(self.spawn("mfschunkserver", "-f", "-c", f"{self.base}/chunks.cfg", "start"))
        wait_for("the chunk server", lambda: self.answers(9422))
        time.sleep(3)  # until the master has heard of its room
        self.only(len(self.mounts))
        run(*self.within, "mfssettrashtime", "-r", "0", self.mounts[0])
        run(*self.within, "mfssetgoal", "-r", "1", self.mounts[0])

    def write(self, name, text):
        with open(os.path.join(self.base, name), "w") as file:
            file.write(text)

    def spawn(self, *command):
        return subprocess.Popen([*self.within, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)

    def answers(self, port):
        asked = [*self.within, "bash", "-c", f"exec 3<>/dev/tcp/{self.address}/{port}"]
        return subprocess.run(asked, capture_output=True).returncode == 0

    def only(self, count):
        for index, mount in enumerate(self.mounts):
            if index < count and mount not in self.clients:
                self.clients[mount] = self.spawn("mfsmount", "-f", "-H", self.address, mount)
                wait_for(mount, lambda: os.path.ismount(mount))
            elif index >= count and mount in self.clients:
                run("umount", mount)
                self.clients.pop(mount).wait(30)

    def servers(self):
        return [child.pid for child in self.children[:1]]

    def stop(self):
        self.only(0)
        for child in reversed(self.children):
            child.terminate()
            child.wait(60)
        if os.path.exists(f"/run/netns/{self.net}"):
            run("ip", "netns", "del", self.net)
        remove(self.base)


def main(what, base):
    kind = what.partition(":")[2] or "plain"
    if not what.startswith("gluster") or kind not in Gluster.kinds:
        sys.exit(f"systems.py: {what}: not one of " + " ".join(f"gluster:{k}" for k in Gluster.kinds))
    if Gluster.missing:
        sys.exit(f"systems.py: {what}: {Gluster.missing}")
    system = Gluster(base, 1, kind)
    try:
        system.start()
        print(system.mounts[0], flush=True)
        for _ in sys.stdin:
            system.only(0)
            system.only(1)
            print(system.mounts[0], flush=True)
    except (RuntimeError, TimeoutError) as error:
        sys.exit(f"systems.py: {what}: {error}")
    finally:
        system.stop()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
