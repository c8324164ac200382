"""What happens to each read of a response body on its way to the client: noted, trimmed, passed on.

The ordinary way is one note and one write. Where usage was asked for on the client's behalf, the event that has it is
taken out; where a stream may be continued on another endpoint, only whole events pass, and the rest of a second
engine's stream is joined to the first's. Runs inside the read callback; waits for nothing.
"""

from __future__ import annotations

from time import monotonic_ns

from gateway import errors
from gateway.errors import GatewayError
from gateway.exchange import Exchange, Watch
from gateway.upstream.client import Sink
from protocol.joining import Joiner, Transcript
from protocol.usage import UsageStrip


class Passage:
    """The way of one response body. `transcript` makes it one that can be continued."""

    def __init__(self, x: Exchange, watch: Watch, transcript: Transcript | None) -> None:
        self._x = x
        self._watch = watch
        self._strip = UsageStrip() if x.injected and x.streams else None
        self.transcript = transcript
        self.joiner: Joiner | None = None
        """Joins what comes now to what the client has, once a second engine speaks."""

    def sink(self) -> Sink:
        """What takes the reads, chosen once for the whole body."""
        if self.transcript is not None:
            return self._pass_whole_events
        return self._plain() if self._strip is None else self._stripped(self._strip)

    def failure(self) -> GatewayError | None:
        """What is wrong with a stream that may be continued, although its connection ended well."""
        transcript, joiner = self.transcript, self.joiner
        if transcript is None or transcript.doubt is not None:
            return None
        if joiner is not None and joiner.failure is not None:
            return errors.not_joined(joiner.failure)
        if transcript.lost is not None:
            return errors.lost_in_stream(transcript.lost)
        return None if transcript.finished else errors.cut_stream()

    def close(self) -> None:
        """The body is over: lets out what was held back in doubt."""
        if self._strip is not None and (rest := self._strip.close()):
            self._x.hidden_bytes -= len(rest)
            self._x.downstream.write(rest)

    def _plain(self) -> Sink:
        feed, downstream = self._watch.feed, self._x.downstream
        write, write_chunk = downstream.write, downstream.chunk_writer

        def forward(data: bytes, chunk: bytes | None) -> None:
            feed(data, monotonic_ns())
            if chunk is not None and write_chunk is not None:
                write_chunk(chunk)
            else:
                write(data)

        return forward

    def _stripped(self, strip: UsageStrip) -> Sink:
        x, feed, downstream = self._x, self._watch.feed, self._x.downstream
        write, write_chunk = downstream.write, downstream.chunk_writer

        def forward(data: bytes, chunk: bytes | None) -> None:
            feed(data, monotonic_ns())
            seen = strip.feed(data)
            if seen is data and chunk is not None and write_chunk is not None:
                write_chunk(chunk)
                return
            x.hidden_bytes += len(data) - len(seen)
            if seen:
                write(seen)

        return forward

    def _pass_whole_events(self, data: bytes, chunk: bytes | None) -> None:
        assert self.transcript is not None
        told = self.transcript.feed(self.joiner.feed(data) if self.joiner is not None else data)
        if not told:
            return
        self._watch.feed(told, monotonic_ns())
        seen = self._strip.feed(told) if self._strip is not None else told
        self._x.hidden_bytes += len(told) - len(seen)
        if seen:
            self._x.downstream.write(seen)
