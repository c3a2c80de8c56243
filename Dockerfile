# A static binary on an empty image. There is no shell inside; `docker logs` shows what it says.
#
#     docker build -t klamm .
#     docker run -d --name kafka -p 9092:9092 -e KAFKA_ADVERTISED_LISTENERS=PLAINTEXT://localhost:9092 klamm

# musl and not glibc: a static glibc cannot look up host names, for it loads libraries to do so.
FROM docker.io/library/rust:1.95-slim-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ make musl-tools \
    && rm -rf /var/lib/apt/lists/*
RUN rustup target add "$(uname -m)-unknown-linux-musl"
WORKDIR /klamm
COPY . .
RUN cargo build --release --locked --bin klamm --target "$(uname -m)-unknown-linux-musl"
# The empty image has no command that could make a directory, so the one for data is made here.
RUN install -D "target/$(uname -m)-unknown-linux-musl/release/klamm" /out/klamm && mkdir /out/data

# compat-tests/container builds this stage alone, with a directory in the place of `build`.
FROM scratch
COPY --from=build /out/klamm /usr/bin/klamm
COPY --from=build --chown=1000:1000 /out/data /var/lib/klamm
COPY config/container.properties /etc/klamm/server.properties
USER 1000:1000
WORKDIR /var/lib/klamm
VOLUME /var/lib/klamm
EXPOSE 9092
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/bin/klamm"]
CMD ["/etc/klamm/server.properties"]
