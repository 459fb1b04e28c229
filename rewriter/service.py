"""The HTTP service of `rewriter.serve`: endpoints, limits, and batches of concurrent requests."""

import asyncio
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import torch
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field, StringConstraints

from core.chat import chat_ids
from core.generation import Completion, generate
from core.language_model import LanguageModel
from core.progress import log
from core.records import Turn
from core.sampling import greedy, sampler, uniform_draws
from rewriter.rewriter import Rewriter
from rewriter.serve import ServeFlags

MAX_MESSAGES, MAX_CHARACTERS, MAX_SAMPLES = 500, 100_000, 64

Text = Annotated[str, StringConstraints(max_length=MAX_CHARACTERS)]
Question = Annotated[str, StringConstraints(max_length=MAX_CHARACTERS, pattern=r"\S")]


class ChatMessage(BaseModel):
    """A message of the OpenAI-compatible API."""

    role: Literal["system", "user", "assistant"]
    content: Text


class HistoryMessage(ChatMessage, extra="forbid"):
    """A message of a conversation."""

    role: Literal["user", "assistant"]


class RewriteRequest(BaseModel, extra="forbid"):
    """A conversation and its last question."""

    history: list[HistoryMessage] = Field(default=[], max_length=MAX_MESSAGES)
    question: Question
    n: int = Field(default=1, ge=1, le=MAX_SAMPLES)


class ChatRequest(BaseModel):
    """A request of the OpenAI-compatible API; other fields are ignored."""

    messages: list[ChatMessage] = Field(min_length=1, max_length=MAX_MESSAGES)
    n: int = Field(default=1, ge=1, le=MAX_SAMPLES)
    temperature: float = Field(default=1.0, ge=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    seed: int = 0
    stream: bool = False

    @property
    def max_new_tokens(self) -> int | None:
        return self.max_tokens or self.max_completion_tokens


class Job(NamedTuple):
    """A request that waits for the model. Jobs with equal keys may share a batch."""

    key: tuple  # the function that answers a batch, then the settings of the request
    request: Any
    result: asyncio.Future


class Batcher:
    """Answers requests in batches: requests that arrive while the model is busy wait for the next batch.

    Args:
        max_batch: maximum number of requests per batch.
        max_queue: maximum number of waiting requests.
    """

    def __init__(self, max_batch: int, max_queue: int):
        self.max_batch, self.max_queue = max_batch, max_queue
        self.waiting: list[Job] = []
        self.worker: asyncio.Task | None = None

    async def submit(self, answer: Callable[[list], list], settings: tuple, request: Any) -> Any:
        """Add a request to the queue and return its answer.

        Args:
            answer: function from a batch of requests with the same settings to their answers or exceptions.
            settings: settings of the request.
            request: the request.

        Raises:
            HTTPException: status 429, too many requests are waiting; or the exception that `answer` returned.
        """
        if len(self.waiting) >= self.max_queue:
            raise HTTPException(429, f"{self.max_queue} requests are waiting; try again later.")
        job = Job((answer, *settings), request, asyncio.get_running_loop().create_future())
        self.waiting.append(job)
        if self.worker is None or self.worker.done():
            self.worker = asyncio.create_task(self._answer_waiting())
        return await job.result

    async def _answer_waiting(self) -> None:
        while self.waiting:
            answer, *_ = key = self.waiting[0].key
            same = [job for job in self.waiting if job.key == key]
            others = [job for job in self.waiting if job.key != key]
            batch, self.waiting = same[: self.max_batch], others + same[self.max_batch :]
            try:
                results = await asyncio.to_thread(answer, [job.request for job in batch])
            except Exception as error:  # one bad batch must not end the service
                results = [error] * len(batch)
            for job, result in zip(batch, results, strict=True):
                if isinstance(result, Exception) and not job.result.done():
                    job.result.set_exception(result)
                elif not job.result.done():  # otherwise the client has disconnected
                    job.result.set_result(result)


def rewrite_batch(rewriter: Rewriter, requests: list[RewriteRequest]) -> list[list[str]]:
    """Answer a batch of requests, which all have the same `n`, with queries."""
    # The id seeds the samples, so that a conversation gets the same ones in any batch, as in `Rewriter.rewrite`.
    turns = [Turn("question", tuple(message.model_dump() for message in r.history), r.question) for r in requests]
    return rewriter.queries(turns, requests[0].n)


def chat_batch(rewriter: Rewriter, requests: list[ChatRequest]) -> list[list[dict[str, Any]] | HTTPException]:
    """Answer a batch of requests, which all have the same limits and sampling settings, with choices or an error."""
    first, lm = requests[0], rewriter.backend.lm
    longest = first.max_new_tokens or rewriter.options.max_new_tokens
    chats = [[message.model_dump() for message in request.messages] for request in requests]
    prompts = chat_ids(lm.tokenizer, chats)
    fitting = [i for i, ids in enumerate(prompts) if len(ids) + longest <= lm.context]
    choose = greedy
    if first.temperature > 0 and fitting:
        draws = [uniform_draws(requests[i].seed, repr(chats[i]), first.n, longest) for i in fitting]
        choose = sampler(torch.cat(draws).to(lm.device), max(first.temperature, 0.01), first.top_p)
    outputs = generate(lm, [prompts[i] for i in fitting], longest, rewriter.options.batch_tokens, choose, first.n)
    answers: list[list[dict[str, Any]] | HTTPException] = [
        HTTPException(422, f"the prompt has {len(ids)} tokens; at most {lm.context - longest} fit with the answer.")
        for ids in prompts
    ]
    for i, completions in zip(fitting, outputs, strict=True):
        answers[i] = [to_choice(lm, index, completion) for index, completion in enumerate(completions)]
    return answers


def to_choice(lm: LanguageModel, index: int, completion: Completion) -> dict[str, Any]:
    """Convert a completion to a choice of the OpenAI-compatible API."""
    text = lm.tokenizer.decode(completion.ids, skip_special_tokens=True).strip()
    message = {"role": "assistant", "content": text}
    return {"index": index, "message": message, "finish_reason": "stop" if completion.ended else "length"}


def app_for(rewriter: Rewriter, flags: ServeFlags) -> FastAPI:
    """Build the service of a rewriter whose model runs in this process."""
    batcher = Batcher(flags.max_batch, flags.max_queue)
    rewrite_all, chat_all = partial(rewrite_batch, rewriter), partial(chat_batch, rewriter)
    app = FastAPI(title="Query rewriter")

    @app.middleware("http")
    async def limit_body(request: Request, call_next):
        length = request.headers.get("content-length", "")
        if request.method == "POST" and not length.isdecimal():
            return JSONResponse({"detail": "the header Content-Length is missing."}, 411)
        if request.method == "POST" and int(length) > flags.max_body:
            message = f"the request has {length} bytes; at most {flags.max_body} are accepted."
            return JSONResponse({"detail": message}, 413)
        if request.method == "POST" and "json" not in request.headers.get("content-type", ""):
            return JSONResponse({"detail": "send JSON, with the header `Content-Type: application/json`."}, 415)
        return await call_next(request)

    @app.post("/rewrite")
    async def rewrite(request: RewriteRequest) -> dict[str, Any]:
        queries = await batcher.submit(rewrite_all, (request.n,), request)
        return {"query": queries[0], "queries": queries}

    @app.post("/v1/chat/completions")
    async def chat(request: ChatRequest) -> dict[str, Any]:
        if request.stream:
            raise HTTPException(422, "`stream` is not supported; remove it.")
        settings = (request.n, request.temperature, request.top_p, request.max_new_tokens)
        choices = await batcher.submit(chat_all, settings, request)
        identity = {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": "chat.completion", "created": int(time.time())}
        return identity | {"model": flags.name, "choices": choices}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": flags.name, "object": "model", "created": 0, "owned_by": "local"}]}

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"status": "ok", "waiting": len(batcher.waiting)}

    return app


def serve(flags: ServeFlags) -> None:
    """Serve until a signal stops the process; requests in flight are still answered.

    Raises:
        InputError: the rewriter cannot be loaded.
    """
    rewriter = Rewriter.from_pretrained(flags.rewriter, **({"dtype": flags.dtype} if flags.dtype else {}))
    log.info("serving %s as `%s` on http://%s:%d", flags.rewriter, flags.name, flags.host, flags.port)
    uvicorn.run(app_for(rewriter, flags), host=flags.host, port=flags.port, log_level="warning")
