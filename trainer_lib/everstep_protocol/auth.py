"""R22: who may speak. The token keeps strangers out, the attempt in each message keeps ghosts out.

A request carries, beside its body, these headers; its signature covers method, path, job, sender, recipient, nonce and body.
The answer's signature covers the request's nonce, the status code, the answering pod and the body, so an old answer, or one from
a pod that got the IP of another, does not count.
"""

from __future__ import annotations

import hashlib
import hmac

HEADER_JOB = "X-Everstep-Job"  # job UID
HEADER_SENDER = "X-Everstep-Sender"  # pod UID, or `operator`
HEADER_RECIPIENT = "X-Everstep-Recipient"  # pod UID that is meant
HEADER_NONCE = "X-Everstep-Nonce"  # 32 hex digits, new for each request
HEADER_SIGNATURE = "X-Everstep-Signature"
OPERATOR = "operator"


def job_token(root_key: bytes, job_uid: str) -> str:
    """The token of one job: HMAC-SHA256 (hex) of its UID under the operator's root key."""
    return hmac.new(root_key, b"everstep-job-token:" + job_uid.encode(), hashlib.sha256).hexdigest()


def sign_request(
    token: str, *, method: str, path: str, job: str, sender: str, recipient: str, nonce: str, body: bytes
) -> str:
    """Signature of a request (hex)."""
    return _sign(token, "request", method, path, job, sender, recipient, nonce, body)


def sign_answer(token: str, *, nonce: str, status: int, responder: str, body: bytes) -> str:
    """Signature of an answer (hex)."""
    return _sign(token, "answer", nonce, str(status), responder, body)


def verify(expected: str, given: str | None) -> bool:
    """Compare two signatures in constant time."""
    return given is not None and hmac.compare_digest(expected.encode(), given.encode())


def _sign(token: str, *parts: str | bytes) -> str:
    digest = hmac.new(token.encode(), digestmod=hashlib.sha256)
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        digest.update(len(raw).to_bytes(8, "big") + raw)
    return digest.hexdigest()
