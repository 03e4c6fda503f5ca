"""Runs one job and says what it used: supervise.py CGROUP[,CGROUP...]|- PROGRAM ARGUMENT...

The job is a child of its own, so that its rusage and /proc/PID/io hold it and what it started, and nothing else. They are read when
it has ended and before it is reaped, so that a job that was killed is told of as well. One line of JSON on standard output. If
the process that started this one is gone, the job is killed: nothing runs on by itself.
"""
import json
import os
import signal
import subprocess
import sys
import time

TAIL = 2000  # characters of its errors that are told


def io(pid):
    with open(f"/proc/{pid}/io") as lines:
        return {key: int(value) for key, value in (line.split(":") for line in lines)}


def main():
    groups, program = sys.argv[1], sys.argv[2:]
    for group in [] if groups == "-" else groups.split(","):
        with open(os.path.join(group, "cgroup.procs"), "w") as procs:
            procs.write(str(os.getpid()))
    parent = os.getppid()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    out, err = (os.memfd_create(name) for name in ("out", "err"))
    began = time.monotonic()
    # The mask is inherited; the job gets the usual one.
    child = subprocess.Popen(
        program, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
        preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD]))
    while os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        if os.getppid() != parent:
            os.killpg(0, signal.SIGKILL)
        signal.sigtimedwait([signal.SIGCHLD], 1.0)
    real = time.monotonic() - began
    moved = io(child.pid)
    _, status, used = os.wait4(child.pid, 0)
    said = [os.pread(fd, os.fstat(fd).st_size, 0).decode("utf-8", "replace") for fd in (out, err)]
    try:
        told = json.loads(said[0].strip().splitlines()[-1])
    except (ValueError, IndexError):
        told = {}
    before = told.get("io_before", {})
    code = os.waitstatus_to_exitcode(status)
    print(json.dumps({
        "exit": code,
        "error": said[1].strip()[-TAIL:] if code else "",
        "values": told.get("values"),
        "real_s": real,
        "user_s": used.ru_utime,
        "system_s": used.ru_stime,
        "memory_bytes": used.ru_maxrss * 1024,
        "faults": used.ru_majflt,
        "reclaims": used.ru_minflt,
        "voluntary": used.ru_nvcsw,
        "involuntary": used.ru_nivcsw,
        "blocks_in": used.ru_inblock,
        "blocks_out": used.ru_oublock,
        # What it read to start up (programs, libraries) is not the workload's.
        "read_bytes": moved["rchar"] - before.get("rchar", 0),
        "written_bytes": moved["wchar"] - before.get("wchar", 0),
    }))


main()
