"""TensorBoard's event files, read back."""

import struct

from tensorboardX.proto import event_pb2


def scalars(directory):
    """Returns (step, name, value) of what TensorBoard shows: a restart withdraws later steps."""
    shown = []
    for path in sorted(directory.iterdir(), key=lambda path: path.stat().st_mtime_ns):
        data = path.read_bytes()
        while data:
            size = struct.unpack("<Q", data[:8])[0]
            event = event_pb2.Event.FromString(data[12 : 12 + size])
            data = data[12 + size + 4 :]
            if event.HasField("session_log"):
                shown = [entry for entry in shown if entry[0] < event.step]
            shown += [
                (event.step, value.tag, value.simple_value)
                for value in event.summary.value
            ]
    return shown
