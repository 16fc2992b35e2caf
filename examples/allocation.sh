# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# Functions for consumers of accelerators. They take a POSIX shell, curl, grep and sed.
#
# CYBORG is the endpoint, such as http://127.0.0.1:6666, and TOKEN a token of Keystone for it.

# ask METHOD PATH [BODY]: prints the answer, and fails where it is an error, or has not come within
# LONGEST seconds.
ask() {
    curl --silent --show-error --fail-with-body --max-time "${LONGEST:-90}" --request "$1" "$CYBORG/v2$2" \
        --header "X-Auth-Token: ${TOKEN:-}" --header "Content-Type: application/json" \
        --header "OpenStack-API-Version: accelerator 2.4" ${3:+--data "$3"}
}

# status_of METHOD PATH: prints the status of the answer; 000 if there is none.
status_of() {
    curl --silent --output /dev/null --write-out '%{http_code}' --max-time 15 --request "$1" \
        "$CYBORG/v2$2" --header "X-Auth-Token: ${TOKEN:-}" \
        --header "OpenStack-API-Version: accelerator 2.4" || true
}

# state_of ANSWER: the state of the allocation.
state_of() {
    printf '%s' "$1" | grep -o '"state": *"[A-Za-z]*"' | sed -n '1s/.*"\([A-Za-z]*\)"/\1/p'
}

# allocate UUID BODY: prints the allocation of that consumer once it can be used. It may be called
# again, after a lost answer too.
allocate() {
    answer=$(ask POST /allocations "$2") || {
        printf '%s\n' "$answer" >&2
        return 1
    }
    while [ "$(state_of "$answer")" = Claiming ] || [ "$(state_of "$answer")" = Binding ]; do
        sleep 1
        answer=$(ask GET "/allocations/$1") || return 1
    done
    printf '%s\n' "$answer"
    [ "$(state_of "$answer")" = Active ]
}

# addresses: reads an allocation, and prints the address of each PCI function of it.
addresses() {
    grep -o '"attach_handle_info": *{[^}]*}' | while read -r info; do
        printf '%s:%s:%s.%s\n' "$(part domain)" "$(part bus)" "$(part device)" "$(part function)"
    done
}

# cdi_devices: reads an allocation, and prints the names by which a container gets what is in it.
cdi_devices() {
    grep -o '"cdi_device": *"[^"]*"' | sed 's/.*"\([^"]*\)"$/\1/'
}

part() {
    printf '%s' "$info" | sed "s/.*\"$1\": *\"\([^\"]*\)\".*/\1/"
}
