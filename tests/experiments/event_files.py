"""TensorBoard's event files, read back."""

import struct

from tensorboardX.proto import event_pb2, plugin_hparams_pb2


def events(directory):
    """Gives all events of a folder."""
    for path in sorted(directory.iterdir(), key=lambda path: path.stat().st_mtime_ns):
        data = path.read_bytes()
        while data:
            size = struct.unpack("<Q", data[:8])[0]
            yield event_pb2.Event.FromString(data[12 : 12 + size])
            data = data[12 + size + 4 :]


def scalars(directory):
    """Returns (step, name, value) of what TensorBoard shows: a restart withdraws later steps."""
    shown = []
    for event in events(directory):
        if event.HasField("session_log"):
            shown = [entry for entry in shown if entry[0] < event.step]
        shown += [
            (event.step, value.tag, value.simple_value)
            for value in event.summary.value
            if value.HasField("simple_value")
        ]
    return shown


def hyperparameters(directory):
    """Returns {setting: value} of a folder's HParams, and the names of their metrics."""
    given = {}
    metrics = []
    for event in events(directory):
        for value in event.summary.value:
            content = value.metadata.plugin_data.content
            if not value.tag.startswith("_hparams_"):
                continue
            data = plugin_hparams_pb2.HParamsPluginData.FromString(content)
            metrics += [info.name.tag for info in data.experiment.metric_infos]
            for name, entry in data.session_start_info.hparams.items():
                given[name] = getattr(entry, entry.WhichOneof("kind"))
    return given, metrics
