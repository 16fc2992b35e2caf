#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# RabbitMQ for tools/services.sh, which sources this.

function create_rabbitmq {
    local data port distribution epmd secret
    data=$(prepare rabbitmq)
    read -r port distribution epmd <<<"$(free_ports 3)"
    secret=$(password)
    cat >"$data/rabbitmq.conf" <<CONF
listeners.tcp.1 = 127.0.0.1:$port
default_user = cyborg
default_pass = $secret
default_vhost = cyborg
disk_free_limit.absolute = 50MB
vm_memory_high_watermark.absolute = 512MB
CONF
    echo "[]." >"$data/enabled_plugins"
    : >"$data/env.conf"
    cat >"$data/environment" <<ENVIRONMENT
HOME=$data
ERL_EPMD_ADDRESS=127.0.0.1
ERL_EPMD_PORT=$epmd
RABBITMQ_NODENAME=cyborg$port@localhost
RABBITMQ_DIST_PORT=$distribution
RABBITMQ_CONF_ENV_FILE=$data/env.conf
RABBITMQ_CONFIG_FILE=$data/rabbitmq.conf
RABBITMQ_ADVANCED_CONFIG_FILE=$data/advanced.config
RABBITMQ_ENABLED_PLUGINS_FILE=$data/enabled_plugins
RABBITMQ_MNESIA_BASE=$data/mnesia
RABBITMQ_PID_FILE=$data/pid
RABBITMQ_LOGS=-
RABBITMQ_LOG_BASE=$data/log
RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1}
ENVIRONMENT
    echo "rabbit://cyborg:$secret@127.0.0.1:$port/cyborg" >"$STATE/rabbitmq/url.new"
    # Started here because the one that RabbitMQ starts would outlive it.
    in_rabbitmq launch rabbitmq env epmd
}

# With RUNNING_UNDER_SYSTEMD the script becomes the server instead of waiting as its parent.
function run_rabbitmq {
    in_rabbitmq launch rabbitmq env RUNNING_UNDER_SYSTEMD=1 /usr/lib/rabbitmq/bin/rabbitmq-server
}

# Run a command with the environment of the server.
function in_rabbitmq {
    local variable data
    data=$(cat "$STATE/rabbitmq/data")
    (
        while IFS= read -r variable; do
            export "${variable?}"
        done <"$data/environment"
        # Erlang looks for its files here, too, and tells at length if it may not.
        cd "$data" || exit
        "$@"
    )
}

function rabbitmqctl {
    running rabbitmq || die "rabbitmq does not run"
    in_rabbitmq as_user rabbitmq /usr/lib/rabbitmq/bin/rabbitmqctl --quiet "$@"
}

# Evaluate Erlang in the server: rabbitmqctl would start a virtual machine for it.
function evaluate {
    running rabbitmq || die "rabbitmq does not run"
    in_rabbitmq call_erlang "$1"
}

function call_erlang {
    local cookie
    cookie=$(cat "$HOME/.erlang.cookie")
    # Two of one name would put each other out.
    erl_call -h "tests$BASHPID" -sname "$RABBITMQ_NODENAME" -c "$cookie" -e <<<"$1"
}

# The listener opens last; a broker that is up answers the protocol header with a frame.
function ready_rabbitmq {
    local port answer
    port=$(url_port rabbitmq)
    (
        exec 3<>"/dev/tcp/127.0.0.1/$port"
        printf 'AMQP\0\0\11\1' >&3
        read -r -N 1 -t 5 answer <&3
        [[ $answer == $'\1' ]]
    ) 2>/dev/null
}
