# SPDX-License-Identifier: Apache-2.0
"""A signal that does not wake the thread which waits for it is not lost."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

PATIENCE = 60

PROGRAM = """
import signal, sys, threading, time
from cyborg import process

class Part:
    def start(self):
        threading.Thread(target=self.work, daemon=True).start()
    def work(self):
        # By then the main thread sleeps; the kernel could have chosen this thread by itself.
        time.sleep(1)
        signal.pthread_kill(threading.get_ident(), int(sys.argv[1]))
        time.sleep(600)
    def stop(self):
        print("stopped", flush=True)

process.run([Part()])
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_another_thread_gets_stops_the_process(number):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(int(number))],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, "stopped\n"), done.stderr
