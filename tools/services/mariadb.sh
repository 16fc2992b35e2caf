#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# MariaDB for tools/services.sh, which sources this.

function create_mariadb {
    local data port secret
    data=$(prepare mariadb)
    read -r port <<<"$(free_ports 1)"
    secret=$(password)
    cat >"$data/init.sql" <<SQL
CREATE USER IF NOT EXISTS cyborg@127.0.0.1 IDENTIFIED BY '$secret';
GRANT ALL ON *.* TO cyborg@127.0.0.1;
CREATE DATABASE IF NOT EXISTS cyborg CHARACTER SET utf8mb4;
SQL
    as_user mysql mariadb-install-db --no-defaults --datadir="$data/data" --skip-test-db \
        --auth-root-authentication-method=socket >"$STATE/mariadb/log" 2>&1 || return 1
    echo "mysql+pymysql://cyborg:$secret@127.0.0.1:$port/cyborg" >"$STATE/mariadb/url.new"
}

function run_mariadb {
    local data port
    data=$(cat "$STATE/mariadb/data")
    port=$(url_port mariadb)
    launch mariadb /usr/sbin/mariadbd --no-defaults --datadir="$data/data" \
        --init-file="$data/init.sql" --bind-address=127.0.0.1 --port="$port" \
        --socket="$data/socket" --pid-file="$data/pid" --tmpdir="$data" --skip-name-resolve \
        --character-set-server=utf8mb4 --max-connections=300 --skip-log-bin \
        --performance-schema=OFF --innodb-buffer-pool-size=64M --innodb-log-file-size=32M \
        --innodb-flush-method=nosync --innodb-flush-log-at-trx-commit=0 \
        --skip-innodb-doublewrite --skip-innodb-use-native-aio
}

function ready_mariadb {
    local port secret
    port=$(url_port mariadb)
    secret=$(sed 's|.*cyborg:\(.*\)@.*|\1|' "$STATE/mariadb/url.new")
    MYSQL_PWD=$secret mariadb-admin --no-defaults --protocol=tcp --host=127.0.0.1 \
        --port="$port" --user=cyborg ping >/dev/null 2>&1
}
