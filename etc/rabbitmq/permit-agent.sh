#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Give the agent of one host a RabbitMQ user of its own, which can read the messages of no other
# host, and send to conductors and in reply only:
#
#   permit-agent.sh HOST [VHOST]      VHOST is / unless given; the password is read from stdin
#
# HOST is [DEFAULT] host of the agent. The user is called cyborg-agent-HOST. A second run changes
# the password. RABBITMQCTL may hold another command than rabbitmqctl.

set -o errexit -o nounset -o pipefail

if [[ $# -lt 1 || $# -gt 2 || ! $1 =~ ^[A-Za-z0-9_.-]+$ ]]; then
    echo "usage: $0 HOST [VHOST], with the password on stdin" >&2
    exit 2
fi

readonly HOST=$1 VHOST=${2:-/} NAME=cyborg-agent-$1
read -r -a CTL <<<"${RABBITMQCTL:-rabbitmqctl}"
IFS= read -r PASSWORD
[[ -n $PASSWORD ]] || { echo "$0: the password is empty" >&2; exit 2; }

# Its own queues, the exchange of Cyborg, and the queues of replies. Their names are in each message
# that an agent receives; what others cannot guess is the id of the message that is answered.
readonly OWN="^(cyborg-agent(\\.${HOST//./\\.})?|cyborg-agent_fanout.*|reply_.*|cyborg)$"

if "${CTL[@]}" list_users | cut -f 1 | grep --quiet --line-regexp --fixed-strings "$NAME"; then
    "${CTL[@]}" change_password "$NAME" "$PASSWORD"
else
    "${CTL[@]}" add_user "$NAME" "$PASSWORD"
fi
# Replies go through the default exchange. RabbitMQ cannot limit to which queues.
readonly WRITE="${OWN%)\$}|amq\\.default)\$"
"${CTL[@]}" set_permissions -p "$VHOST" "$NAME" "$OWN" "$WRITE" "$OWN"
# What it may send through that exchange; cyborg-nobody is how an agent finds out whether it can.
"${CTL[@]}" set_topic_permissions -p "$VHOST" "$NAME" cyborg \
    '^(cyborg-conductor|cyborg-nobody)$' '^cyborg-agent(\.'"${HOST//./\\.}"')?$'
