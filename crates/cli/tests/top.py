"""`ropewalk top` in a terminal: what it draws, that keys drill down, that it gives the terminal back.

usage: top.py ROPEWALK DIRECTORY
"""
import codecs
import os
import pty
import re
import select
import signal
import sys
import termios
import time

PATIENCE = 60


class Terminal:
    def __init__(self, command):
        # It begins when the terminal has been looked at as it was before.
        begins, begin = os.pipe()
        pid, self.fd = pty.fork()
        if pid == 0:
            os.close(begin)
            os.read(begins, 1)
            os.execv(command[0], command)
        # A character can come in two parts.
        self.pid, self.text, self.decoder = pid, "", codecs.getincrementaldecoder("utf-8")()
        self.before = termios.tcgetattr(self.fd)
        os.close(begins)
        os.close(begin)

    def wait_for(self, what):
        """Until it was drawn, after what was waited for before."""
        end = time.time() + PATIENCE
        while time.time() < end:
            found = re.search(what, self.text, re.DOTALL)
            if found:
                self.text = self.text[found.end():]
                return
            if select.select([self.fd], [], [], 1)[0]:
                self.text += self.decoder.decode(os.read(self.fd, 65536))
        sys.exit(f"waited in vain for {what!r}; on the screen: {self.text[-2000:]!r}")

    def press(self, keys):
        os.write(self.fd, keys.encode())

    def end(self):
        """What it ends with; and the terminal is as it was."""
        self.wait_for(re.escape("\x1b[?25h\x1b[?1049l"))
        # The terminal lives as long as this end is open.
        after = termios.tcgetattr(self.fd)
        _, status = os.waitpid(self.pid, 0)
        after = after if after == self.before else termios.tcgetattr(self.fd)
        os.close(self.fd)
        if os.waitstatus_to_exitcode(status) != 0 or after != self.before:
            sys.exit(f"it ended with {status}, and the terminal is {'not ' * (after != self.before)}as it was")


def main():
    ropewalk, directory = sys.argv[1:]
    command = [ropewalk, "top", "--dir", directory, "--over", "10min"]
    drawn = Terminal(command)
    # Its figures: that it does not answer yet would be said with its name as well.
    drawn.wait_for(r"mounts by client.*CLIENT.*/mnt +[0-9.]+/s")
    drawn.press("\r")
    drawn.wait_for("mounts by file: client .*/mnt.*FILE.*/heavy")
    drawn.press("/heavy\r")
    drawn.wait_for("/heavy .*")
    drawn.press("\r")
    drawn.wait_for("mounts by op: .*file /heavy.*write")
    drawn.press("l")
    drawn.wait_for("by latency: .*LATENCY>=.*#")
    drawn.press("\x1b")
    drawn.press("5")
    drawn.wait_for("servers by pdisk.*pdisk1")
    drawn.press("q")
    drawn.end()

    stopped = Terminal(command)
    stopped.wait_for("mounts by client.*/mnt")
    # Ctrl-C, as the terminal sends it.
    stopped.press("\x03")
    stopped.end()

    told = Terminal(command)
    told.wait_for("mounts by client")
    os.kill(told.pid, signal.SIGTERM)
    told.end()


main()
