#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Give the agent of one host a RabbitMQ user of its own, which can make, read, empty and delete no
# queue of anybody else, and through the exchange of all services send to conductors only:
#
#   permit-agent.sh HOST VHOST [EXCHANGE]    the password is read from stdin
#
# HOST is [DEFAULT] host of the agent, VHOST a virtual host for Cyborg alone, and EXCHANGE is [DEFAULT]
# rpc_exchange of all services: amq.topic unless given. The user is called cyborg-agent-HOST. A
# second run changes the password and the permissions. RABBITMQCTL may hold another command than
# rabbitmqctl.
#
# What this cannot hold back:
#
# - Replies go through the default exchange, and RabbitMQ cannot limit to which queues. So the host
#   can send to any queue of VHOST: orders to other hosts, and answers in their name, which [agent]
#   require_host_keys has refused, since they need a signature; and notifications, which have none.
#   So nothing but Cyborg may be in VHOST, no other service and no notifications.
# - Messages that its own queues drop as dead, or that an exchange of its own passes on, reach every
#   queue that is bound to EXCHANGE, whatever it may send there itself.
# - It can send as much as it likes, and anything: services drop what they cannot read, and quorum queues
#   with [oslo_messaging_rabbit] rabbit_quorum_delivery_limit what they do not survive.
# - With cyborg as EXCHANGE it can delete that, or make one of another kind in its place: no message
#   of anybody arrives from then on. Nothing holds that back but amq.topic.

set -o errexit -o nounset -o pipefail

# A name with _fanout in it could be that of what oslo.messaging makes for another host.
if [[ $# -lt 2 || $# -gt 3 || -z $2 || $2 == / || ! $1 =~ ^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$ ||
    $1 == *_fanout* || ! ${3:-cyborg} =~ ^(cyborg|amq\.topic)$ ]]; then
    echo "usage: $0 HOST VHOST [amq.topic|cyborg], with the password on stdin; VHOST is not /" >&2
    exit 2
fi

readonly HOST=$1 VHOST=$2 EXCHANGE=${3:-amq.topic} NAME=cyborg-agent-$1
read -r -a CTL <<<"${RABBITMQCTL:-rabbitmqctl}"
IFS= read -r PASSWORD
[[ -n $PASSWORD ]] || { echo "$0: the password is empty" >&2; exit 2; }

# Its queues: that of orders, two that oslo.messaging makes besides, and those of replies to it.
readonly ORDERS="cyborg-agent\\.${HOST//./\\.}"
readonly OWN="$ORDERS(\\._|_fanout.*)?|reply_${HOST//./\\.}:.*"
readonly USED="$OWN|${EXCHANGE//./\\.}"
# amq.topic is there. What is declared, as oslo.messaging does it, must be permitted to be made.
[[ $EXCHANGE == amq.* ]] && MADE=$OWN || MADE=$USED

if "${CTL[@]}" list_users | cut -f 1 | grep --quiet --line-regexp --fixed-strings "$NAME"; then
    "${CTL[@]}" change_password "$NAME" "$PASSWORD"
else
    "${CTL[@]}" add_user "$NAME" "$PASSWORD"
fi
"${CTL[@]}" set_permissions -p "$VHOST" "$NAME" "^($MADE)\$" "^($USED|amq\\.default)\$" "^($USED)\$"
# What it may send through that exchange; cyborg-nobody is how an agent finds out whether it can.
"${CTL[@]}" set_topic_permissions -p "$VHOST" "$NAME" "$EXCHANGE" \
    '^(cyborg-conductor|cyborg-nobody)$' "^$ORDERS(\\._)?\$"
