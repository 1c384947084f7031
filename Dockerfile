# One image for the operator, the injector and the sidecar. The build needs no network: `make wheels` puts the project's
# own wheel and everything it depends on, for this base's Python, into build/wheels.
#
#   make wheels && docker build --tag everstep:0.1.0 .
ARG BASE=python:3.13-slim-trixie

FROM ${BASE} AS unpacked
COPY build/wheels/ /wheels/
COPY tools/unpack_wheels.py /unpack_wheels.py
# The exec form throughout: nothing here needs a shell, nor pip, which Debian's python3 has not.
RUN ["python3", "/unpack_wheels.py", "/wheels", "/opt/everstep"]

FROM ${BASE}
COPY --from=unpacked /opt/everstep /opt/everstep
# USER: the uid has no entry in any passwd file, and libraries ask for a name.
ENV PYTHONPATH=/opt/everstep PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 USER=everstep HOME=/tmp
USER 65532:65532
WORKDIR /
ENTRYPOINT ["python3", "-m"]
CMD ["everstep_operator.main"]
