# SPDX-License-Identifier: Apache-2.0
"""The channel to a privileged helper."""

import socket
import threading

import pytest
from oslo_privsep import daemon

from cyborg.drivers import helper_channel, privileged


@pytest.mark.parametrize("has_read", [True, False])
def test_a_helper_that_dies_is_told(has_read):
    ours, its = socket.socketpair()

    def die():
        its.recv(4096, 0 if has_read else socket.MSG_PEEK)
        its.close()

    threading.Thread(target=die).start()
    channel = helper_channel.Telling(ours)
    told = []

    def call():
        with pytest.raises(OSError, match="Premature eof"):
            channel.send_recv(("PING",))
        told.append(True)

    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    caller.join(10)
    assert told == [True]


def test_helpers_have_such_channels():
    assert privileged.context.channel is None
    assert issubclass(daemon.RootwrapClientChannel, helper_channel.Telling)
