#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# PostgreSQL for tools/services.sh, which sources this.

# A test database is dropped with FORCE, which fails for a role that may not signal an autovacuum
# worker that happens to be in it: hence both the grant and no autovacuum.
function create_postgresql {
    local data port secret bin
    data=$(prepare postgresql)
    read -r port <<<"$(free_ports 1)"
    secret=$(password)
    bin=$(postgresql_bin)
    {
        as_user postgres "$bin/initdb" --pgdata="$data/data" --username=postgres --no-sync \
            --encoding=UTF8 --locale=C.UTF-8 --auth-local=peer --auth-host=scram-sha-256 &&
            as_user postgres "$bin/postgres" --single -F -D "$data/data" postgres <<SQL
CREATE ROLE cyborg LOGIN CREATEDB PASSWORD '$secret';
GRANT pg_signal_backend TO cyborg;
CREATE DATABASE cyborg OWNER cyborg;
SQL
    } >"$STATE/postgresql/log" 2>&1 || return 1
    echo "postgresql+psycopg2://cyborg:$secret@127.0.0.1:$port/cyborg" \
        >"$STATE/postgresql/url.new"
}

function run_postgresql {
    local data port
    data=$(cat "$STATE/postgresql/data")
    port=$(url_port postgresql)
    launch postgresql "$(postgresql_bin)/postgres" -D "$data/data" -p "$port" -F \
        -c listen_addresses=127.0.0.1 -c unix_socket_directories="$data" \
        -c synchronous_commit=off -c full_page_writes=off -c wal_level=minimal \
        -c max_wal_senders=0 -c autovacuum=off -c shared_buffers=64MB -c max_connections=300
}

function ready_postgresql {
    local port
    port=$(url_port postgresql)
    "$(postgresql_bin)/pg_isready" --quiet --host=127.0.0.1 --port="$port"
}
