"""The bridge as programs in other languages start it."""

import json
import os
import socket
import struct
import subprocess


def test_the_bridge_talks_over_sockets_as_nodejs_makes_them():
    (ours, theirs), (reads, writes) = socket.socketpair(), socket.socketpair()
    bridge = subprocess.Popen([os.environ["HQ_BINARY"], "bridge", "--local"], stdin=theirs, stdout=writes)
    theirs.close()
    writes.close()
    with ours, reads.makefile("rb") as answers:
        length, size = struct.unpack("<II", answers.read(8))
        assert json.loads(answers.read(size))["ev"] == "ready" and length == size + 4
        question = json.dumps({"op": "ask", "id": 1, "question": {"what": "open", "name": "a"}}).encode()
        ours.sendall(struct.pack("<II", len(question) + 4, len(question)) + question)
        _, size = struct.unpack("<II", answers.read(8))
        assert json.loads(answers.read(size)) == {"ev": "answer", "id": 1, "value": 1}
    assert bridge.wait(60) == 0
    reads.close()


def test_a_malformed_frame_is_reported_before_the_end():
    command = [os.environ["HQ_BINARY"], "bridge", "--local"]
    ran = subprocess.run(command, input=struct.pack("<II", 7, 3) + b"{]}", capture_output=True, timeout=60)
    assert ran.returncode == 1
    (length,) = struct.unpack("<I", ran.stdout[:4])
    fatal = json.loads(ran.stdout[4 + length + 8 :])
    assert fatal["ev"] == "fatal" and "A frame with invalid JSON" in fatal["text"]
