"""The HTTP service of `rewriter.serve`: endpoints, limits, and batches of concurrent requests."""

import asyncio
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from core.chat import chat_ids
from core.generation import Completion, generate, greedy
from core.progress import log
from core.records import Message, Turn
from rewriter.rewriter import LocalBackend, Rewriter
from rewriter.sampling import sampler, uniform_draws
from rewriter.serve import ServeFlags

MAX_MESSAGES, MAX_CHARACTERS, MAX_SAMPLES = 500, 100_000, 64

Text = Annotated[str, StringConstraints(max_length=MAX_CHARACTERS)]
Question = Annotated[str, StringConstraints(max_length=MAX_CHARACTERS, pattern=r"\S")]


class HistoryMessage(BaseModel):
    """A message of a conversation."""

    model_config = ConfigDict(extra="forbid")
    role: Literal["user", "assistant"]
    content: Text


class RewriteRequest(BaseModel):
    """A conversation and its last question."""

    model_config = ConfigDict(extra="forbid")
    history: list[HistoryMessage] = Field(default=[], max_length=MAX_MESSAGES)
    question: Question
    n: int = Field(default=1, ge=1, le=MAX_SAMPLES)


class ChatMessage(BaseModel):
    """A message of the OpenAI protocol."""

    role: Literal["system", "user", "assistant"]
    content: Text


class ChatRequest(BaseModel):
    """A request of the OpenAI protocol; other fields than these are not looked at."""

    messages: list[ChatMessage] = Field(min_length=1, max_length=MAX_MESSAGES)
    model: str = ""
    n: int = Field(default=1, ge=1, le=MAX_SAMPLES)
    temperature: float = Field(default=1.0, ge=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    seed: int = 0
    stream: bool = False


@dataclass
class Job:
    """A request that waits for the model. Jobs with equal `kind` are answered in one batch."""

    kind: tuple
    request: Any
    answer: asyncio.Future


class Batcher:
    """Answers requests in batches: those that arrive while the model works wait for the next one.

    Args:
        rewriter: the model and its settings.
        max_batch: most requests of a batch.
        max_queue: most requests that wait.
    """

    def __init__(self, rewriter: Rewriter, max_batch: int, max_queue: int):
        self.rewriter, self.max_batch = rewriter, max_batch
        self.queue: asyncio.Queue[Job] = asyncio.Queue(max_queue)

    async def submit(self, kind: tuple, request: Any) -> Any:
        """The answer to a request.

        Raises:
            HTTPException: status 429, too many requests wait; status 422, the model cannot take this one.
        """
        job = Job(kind, request, asyncio.get_running_loop().create_future())
        try:
            self.queue.put_nowait(job)
        except asyncio.QueueFull as error:
            raise HTTPException(429, f"{self.queue.maxsize} requests are waiting; try again later.") from error
        return await job.answer

    async def run(self) -> None:
        """Answer batches until the task is cancelled."""
        while True:
            jobs = [await self.queue.get()]
            while len(jobs) < self.max_batch and not self.queue.empty():
                jobs.append(self.queue.get_nowait())
            by_kind = defaultdict(list)
            for job in jobs:
                by_kind[job.kind].append(job)
            for kind, group in by_kind.items():
                function = self._rewrite if kind[0] == "rewrite" else self._chat
                try:
                    answers = await asyncio.to_thread(function, [job.request for job in group])
                except Exception as error:  # one bad batch must not end the service
                    answers = [error] * len(group)
                for job, answer in zip(group, answers, strict=True):
                    if isinstance(answer, Exception) and not job.answer.done():
                        job.answer.set_exception(answer)
                    elif not job.answer.done():  # else the client has gone
                        job.answer.set_result(answer)

    def _rewrite(self, requests: list[RewriteRequest]) -> list[list[str]]:
        # The id seeds the samples; a conversation gives the same ones in any batch, as in `Rewriter.rewrite`.
        turns = [
            Turn("question", tuple(message.model_dump() for message in request.history), request.question)
            for request in requests
        ]
        return self.rewriter.queries(turns, requests[0].n)

    def _chat(self, requests: list[ChatRequest]) -> list[list[Completion] | Exception]:
        first, lm = requests[0], self.rewriter.backend.lm
        longest = first.max_tokens or first.max_completion_tokens or self.rewriter.options.max_new_tokens
        chats: list[list[Message]] = [[message.model_dump() for message in r.messages] for r in requests]
        prompts = chat_ids(lm.tokenizer, chats)
        fitting = [i for i, ids in enumerate(prompts) if len(ids) + longest <= lm.context]
        choose = greedy
        if first.temperature > 0 and fitting:
            draws = [uniform_draws(requests[i].seed, repr(chats[i]), first.n, longest) for i in fitting]
            choose = sampler(torch.cat(draws).to(lm.device), max(first.temperature, 0.01), first.top_p)
        outputs = generate(
            lm, [prompts[i] for i in fitting], longest, self.rewriter.options.batch_tokens, choose, first.n
        )
        answers: list[list[Completion] | Exception] = [
            HTTPException(422, f"the prompt has {len(ids)} tokens; {lm.context - longest} fit beside the answer.")
            for ids in prompts
        ]
        for i, completions in zip(fitting, outputs, strict=True):
            answers[i] = completions
        return answers


def serve(flags: ServeFlags) -> None:
    """Serve until a signal ends the process; requests in flight are answered first.

    Raises:
        InputError: the rewriter cannot be loaded.
    """
    rewriter = Rewriter.from_pretrained(flags.rewriter, **({"dtype": flags.dtype} if flags.dtype else {}))
    app = app_for(rewriter, flags)
    log.info("serving %s as `%s` on http://%s:%d", flags.rewriter, flags.name, flags.host, flags.port)
    uvicorn.run(app, host=flags.host, port=flags.port, log_level="warning")


def app_for(rewriter: Rewriter, flags: ServeFlags) -> FastAPI:
    """The service of a rewriter with a model in this process."""
    assert isinstance(rewriter.backend, LocalBackend)
    batcher = Batcher(rewriter, flags.max_batch, flags.max_queue)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        worker = asyncio.create_task(batcher.run())
        yield
        worker.cancel()
        with suppress(asyncio.CancelledError):
            await worker

    app = FastAPI(title="Query rewriter", lifespan=lifespan)

    @app.middleware("http")
    async def limit_body(request: Request, call_next):
        length = request.headers.get("content-length")
        if request.method == "POST" and (length is None or not length.isdecimal()):
            return JSONResponse({"detail": "the header Content-Length is missing."}, 411)
        if request.method == "POST" and int(length) > flags.max_body:
            message = f"the request has {length} bytes; at most {flags.max_body} are taken."
            return JSONResponse({"detail": message}, 413)
        return await call_next(request)

    @app.post("/rewrite")
    async def rewrite(request: RewriteRequest) -> dict[str, Any]:
        queries = await batcher.submit(("rewrite", request.n), request)
        return {"query": queries[0], "queries": queries}

    @app.post("/v1/chat/completions")
    async def chat(request: ChatRequest) -> dict[str, Any]:
        if request.stream:
            raise HTTPException(422, "`stream` is not supported; leave it out.")
        longest = request.max_tokens or request.max_completion_tokens
        kind = ("chat", request.n, request.temperature, request.top_p, longest)
        completions: list[Completion] = await batcher.submit(kind, request)
        tokenizer = rewriter.backend.lm.tokenizer
        choices = [
            {
                "index": index,
                "message": {
                    "role": "assistant",
                    "content": tokenizer.decode(completion.ids, skip_special_tokens=True).strip(),
                },
                "finish_reason": "stop" if completion.ended else "length",
            }
            for index, completion in enumerate(completions)
        ]
        return {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": flags.name,
            "choices": choices,
        }

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": flags.name, "object": "model", "created": 0, "owned_by": "local"}]}

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"status": "ok", "waiting": batcher.queue.qsize()}

    return app
