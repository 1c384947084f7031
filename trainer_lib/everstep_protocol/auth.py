"""R22: who may speak. The token keeps strangers out, the attempt in each message keeps ghosts out.

A request carries, beside its body, these headers:

| header | what |
|---|---|
| X-Everstep-Job | job UID |
| X-Everstep-Sender | pod UID, or `operator` |
| X-Everstep-Recipient | UID of the pod that is meant |
| X-Everstep-Boot | boot id of the recipient, as far as the sender knows it; empty: not yet |
| X-Everstep-Nonce | 32 hex digits, new for each request |
| X-Everstep-Body-SHA256 | hash of the body (hex) |
| X-Everstep-Signature | covers the method, the path and all of the above |

So a signature is checked before a byte of the body is read, and the body counts only if it has that hash. A recipient takes each nonce
once, and only under its present boot id, which is new with each of its processes: nothing that was heard before can be said again.
A request with another boot id is answered with status `OTHER_BOOT` and a `Problem` that tells the id; the sender repeats it once.

The answer's signature covers the request's nonce, the status code, the answering pod and the body, so an old answer, or one from
a pod that got the IP of another, does not count.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

HEADER_JOB = "X-Everstep-Job"
HEADER_SENDER = "X-Everstep-Sender"
HEADER_RECIPIENT = "X-Everstep-Recipient"
HEADER_BOOT = "X-Everstep-Boot"
HEADER_NONCE = "X-Everstep-Nonce"
HEADER_BODY_SHA256 = "X-Everstep-Body-SHA256"
HEADER_SIGNATURE = "X-Everstep-Signature"
OPERATOR = "operator"
OTHER_BOOT = 425  # HTTP's "Too Early": the server will not risk to process a request that might be replayed
LARGEST_ANSWER_BYTES = (
    16 << 20
)  # whoever has the pod's address now may answer anything: that much is read before it is judged


def job_token(root_key: bytes, job_uid: str) -> str:
    """The token of one job: HMAC-SHA256 (hex) of its UID under the operator's root key."""
    return hmac.new(root_key, b"everstep-job-token:" + job_uid.encode(), hashlib.sha256).hexdigest()


def body_sha256(body: bytes) -> str:
    """What the header says of a body (hex)."""
    return hashlib.sha256(body).hexdigest()


@dataclass(frozen=True)
class RequestHead:
    """All that a request's signature covers."""

    method: str
    path: str
    job: str
    sender: str
    recipient: str
    boot: str
    nonce: str
    body_sha256: str

    def signature(self, token: str) -> str:
        """Signature of the request (hex)."""
        return _sign(
            token,
            "request",
            self.method,
            self.path,
            self.job,
            self.sender,
            self.recipient,
            self.boot,
            self.nonce,
            self.body_sha256,
        )

    def headers(self, token: str) -> dict[str, str]:
        """The signed headers."""
        return {
            HEADER_JOB: self.job,
            HEADER_SENDER: self.sender,
            HEADER_RECIPIENT: self.recipient,
            HEADER_BOOT: self.boot,
            HEADER_NONCE: self.nonce,
            HEADER_BODY_SHA256: self.body_sha256,
            HEADER_SIGNATURE: self.signature(token),
        }


def new_post(path: str, body: bytes, *, job: str, sender: str, recipient: str, boot: str) -> RequestHead:
    """The head of a POST that was never sent before."""
    return RequestHead("POST", path, job, sender, recipient, boot, secrets.token_hex(16), body_sha256(body))


def read_head(method: str, path: str, headers: Mapping[str, str]) -> RequestHead:
    """What a received request says of itself; what it does not say is empty. Nothing of it is checked."""
    said = (HEADER_JOB, HEADER_SENDER, HEADER_RECIPIENT, HEADER_BOOT, HEADER_NONCE, HEADER_BODY_SHA256)
    return RequestHead(method, path, *(headers.get(name, "") for name in said))


def sign_answer(token: str, *, nonce: str, status: int, responder: str, body: bytes) -> str:
    """Signature of an answer (hex)."""
    return _sign(token, "answer", nonce, str(status), responder, body)


def verify(expected: str, given: str | None) -> bool:
    """Compare two signatures in constant time."""
    return given is not None and hmac.compare_digest(_raw(expected), _raw(given))


class Boots:
    """The boot ids that a sender was told, by pod UID. Bounded: of the pods that are gone, the one asked longest ago goes first."""

    def __init__(self, largest: int = 20_000) -> None:
        self._largest = largest
        self._known: OrderedDict[str, str] = OrderedDict()

    def of(self, pod_uid: str) -> str:
        """Empty: not known."""
        if pod_uid in self._known:
            self._known.move_to_end(pod_uid)
        return self._known.get(pod_uid, "")

    def learn(self, pod_uid: str, boot: str) -> None:
        """Told by the pod itself, signed."""
        self._known[pod_uid] = boot
        self._known.move_to_end(pod_uid)
        if len(self._known) > self._largest:
            self._known.popitem(last=False)


def _sign(token: str, *parts: str | bytes) -> str:
    digest = hmac.new(token.encode(), digestmod=hashlib.sha256)
    for part in parts:
        raw = _raw(part) if isinstance(part, str) else part
        digest.update(len(raw).to_bytes(8, "big") + raw)
    return digest.hexdigest()


def _raw(text: str) -> bytes:
    """As it came: strangers' headers may hold anything, and HTTP servers pass on what is no UTF-8 in this way."""
    return text.encode(errors="surrogateescape")
