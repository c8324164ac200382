"""An OTLP receiver in the test's process: what engines export as protobuf over HTTP, as plain values."""

from __future__ import annotations

import contextlib
import gzip
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One span; ids in hex, `parent_id` empty at a root."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, str | int | float]


class Receiver:
    """Every span that has arrived."""

    def __init__(self) -> None:
        self.url = ""
        self._spans: list[Span] = []
        self._arrived = threading.Condition()

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        spans = [
            Span(
                name=span.name,
                trace_id=span.trace_id.hex(),
                span_id=span.span_id.hex(),
                parent_id=span.parent_span_id.hex(),
                attributes={
                    field.key: getattr(field.value, field.value.WhichOneof("value")) for field in span.attributes
                },
            )
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        with self._arrived:
            self._spans += spans
            self._arrived.notify_all()

    def wait_for(self, trace_id: str, parent_id: str, within_s: float = 20.0) -> Span:
        """The child of `parent_id`: engines export in batches, every 5 s. Raises TimeoutError."""
        deadline_s = time.monotonic() + within_s
        with self._arrived:
            while True:
                for span in self._spans:
                    if (span.trace_id, span.parent_id) == (trace_id, parent_id):
                        return span
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or not self._arrived.wait(left_s):
                    seen = [span for span in self._spans if span.trace_id == trace_id]
                    raise TimeoutError(f"no child of {parent_id}; of that trace there are {seen}")

    def of_trace(self, trace_id: str) -> list[Span]:
        with self._arrived:
            return [span for span in self._spans if span.trace_id == trace_id]


@contextlib.contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver that listens on loopback until the block ends."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            receiver.take(gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_port}/v1/traces"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
