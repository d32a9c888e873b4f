import asyncio

from p2l.serving.http import JoinedWrites


class Recorder(asyncio.Transport):
    def __init__(self):
        super().__init__()
        self.seen = []

    def write(self, data):
        self.seen.append(bytes(data))

    def close(self):
        self.seen.append("closed")

    def get_extra_info(self, name, default=None):
        return f"{name} or {default}"


def test_headers_leave_with_the_body_and_nothing_waits_for_more_than_a_turn():
    async def test():
        recorder = Recorder()
        joined = JoinedWrites(recorder)
        joined.write(b"head ")
        assert recorder.seen == []
        joined.write(b"body")
        assert recorder.seen == [b"head body"]
        joined.write(b"next")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert recorder.seen == [b"head body", b"next"]
        assert joined.get_extra_info("peername") == "peername or None"

    asyncio.run(test())


def test_closing_sends_what_was_written_first():
    async def test():
        recorder = Recorder()
        joined = JoinedWrites(recorder)
        joined.write(b"last words")
        joined.close()
        await asyncio.sleep(0)
        assert recorder.seen == [b"last words", "closed"]

    asyncio.run(test())
