"""A connector of StreamFlow: steps of workflows are jobs of an hq server."""

from streamflow.ext.plugin import StreamFlowPlugin

from ._connector import HqConnector

__all__ = ["HqConnector", "HqPlugin"]


class HqPlugin(StreamFlowPlugin):
    def register(self) -> None:
        self.register_connector("hq", HqConnector)
