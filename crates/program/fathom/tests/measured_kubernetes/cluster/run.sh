#!/usr/bin/env bash
# A Kubernetes cluster of three nodes, in namespaces of this machine: run.sh PARTS FOLDER IMAGES.tar
#
# It is the first process of namespaces of its own, so everything here ends with it:
#   unshare --mount --net --pid --fork --kill-child --mount-proc --propagation private run.sh …
# PARTS is the folder that build.sh has made. FOLDER gets all files: `ready` when the three nodes are, `admin.kubeconfig`,
# `bench.kubeconfig` of a user without rights, and logs. The API is at https://10.97.0.254:6443, node nI at 10.97.0.I, its pods at
# 10.98.I.0/24.
set -euo pipefail
parts=$1 folder=$2 images=$3
export PATH=$parts/bin:$parts/root/usr/bin:$parts/root/usr/sbin:$PATH HOME=$folder/home
nodes="1 2 3"
pki=$folder/pki
api=https://10.97.0.254:6443

# Waits for a command to succeed; gives up when whoever started this does.
until_ok() { until "$@" >/dev/null 2>&1; do sleep 0.05; done; }

in_node() { # NUMBER COMMAND…
    local node=$1
    shift
    nsenter --net=/run/netns/n"$node" "$@"
}

# Programs with fixed paths write into memory, and find nothing of this machine's own containers.
keep_off_the_disk() {
    mkdir -p "$folder"/home "$pki"
    mount -t tmpfs none /run
    mkdir -p /run/netns /run/settings
    mount -t tmpfs none /var/log
    local place under
    for place in etc opt var/lib; do
        under=/run/over/${place//\//-}
        mkdir -p "$under"/upper "$under"/work
        mount -t overlay none -o "lowerdir=/$place,upperdir=$under/upper,workdir=$under/work" "/$place"
    done
    # A kubelet writes settings of the whole machine: here they are plain files.
    local setting file
    for setting in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
        file=/run/settings/${setting//\//-}
        cat /proc/sys/$setting >"$file"
        mount --bind "$file" /proc/sys/$setting
    done
}

build_network() {
    ip link set lo up
    ip link add nodes type bridge
    ip address add 10.97.0.254/24 dev nodes
    ip link set nodes up
    # Between nodes it is a router, which is off in a new namespace.
    echo 1 >/proc/sys/net/ipv4/ip_forward
    local node other
    for node in $nodes; do
        ip netns add n"$node"
        ip link add port"$node" type veth peer name eth0 netns n"$node"
        ip link set port"$node" master nodes up
        ip -n n"$node" link set lo up
        ip -n n"$node" address add 10.97.0."$node"/24 dev eth0
        ip -n n"$node" link set eth0 up
        ip -n n"$node" route add default via 10.97.0.254
        ip route add 10.98."$node".0/24 via 10.97.0."$node"
        for other in $nodes; do
            [ "$other" = "$node" ] || ip -n n"$node" route add 10.98."$other".0/24 via 10.97.0."$other"
        done
    done
}

new_key() { openssl ecparam -name prime256v1 -genkey -noout -out "$pki/$1.key"; }

certificate() { # NAME SUBJECT EXTENSION
    new_key "$1"
    openssl req -new -key "$pki/$1.key" -subj "$2" -out "$pki/$1.csr"
    echo "$3" >"$pki/$1.ext"
    openssl x509 -req -in "$pki/$1.csr" -CA "$pki/ca.crt" -CAkey "$pki/ca.key" -CAcreateserial -days 2 -extfile "$pki/$1.ext" -out "$pki/$1.crt" 2>/dev/null
}

kubeconfig() { # FILE TOKEN
    cat >"$1" <<YAML
apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "$api", certificate-authority: $pki/ca.crt}}]
users: [{name: test, user: {token: $2}}]
contexts: [{name: test, context: {cluster: test, user: test, namespace: bench}}]
current-context: test
YAML
}

make_credentials() {
    new_key ca
    openssl req -x509 -new -key "$pki/ca.key" -subj /CN=test-authority -days 2 -out "$pki/ca.crt"
    certificate api /CN=kube-apiserver subjectAltName=IP:10.97.0.254,IP:10.96.0.1
    certificate api-to-kubelet /O=system:masters/CN=api extendedKeyUsage=clientAuth
    openssl genrsa -out "$pki/accounts.key" 2048 2>/dev/null
    {
        echo admin-token,admin,1,system:masters
        echo bench-token,bench,2
        local node
        for node in $nodes; do echo "node-token-$node,system:node:n$node,1$node,system:nodes"; done
    } >"$pki/tokens.csv"
    kubeconfig "$folder/admin.kubeconfig" admin-token
    kubeconfig "$folder/bench.kubeconfig" bench-token
}

start_control_plane() {
    etcd --data-dir /run/etcd --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
        --listen-peer-urls http://127.0.0.1:2380 --unsafe-no-fsync >"$folder/etcd.log" 2>&1 &
    until_ok etcd_answers
    kube-apiserver --etcd-servers=http://127.0.0.1:2379 --bind-address=10.97.0.254 --advertise-address=10.97.0.254 \
        --endpoint-reconciler-type=none --service-cluster-ip-range=10.96.0.0/16 --allow-privileged \
        --cert-dir="$pki" --tls-cert-file="$pki/api.crt" --tls-private-key-file="$pki/api.key" --token-auth-file="$pki/tokens.csv" \
        --service-account-issuer=https://test --service-account-key-file="$pki/accounts.key" \
        --service-account-signing-key-file="$pki/accounts.key" --authorization-mode=Node,RBAC \
        --enable-admission-plugins=NodeRestriction --kubelet-preferred-address-types=InternalIP \
        --kubelet-client-certificate="$pki/api-to-kubelet.crt" --kubelet-client-key="$pki/api-to-kubelet.key" >"$folder/api.log" 2>&1 &
    until_ok kubectl --kubeconfig="$folder/admin.kubeconfig" get --raw=/readyz
    kube-controller-manager --kubeconfig="$folder/admin.kubeconfig" --service-account-private-key-file="$pki/accounts.key" \
        --root-ca-file="$pki/ca.crt" --leader-elect=false --bind-address=127.0.0.1 --flex-volume-plugin-dir="$folder/plugins" \
        >"$folder/controllers.log" 2>&1 &
    kube-scheduler --kubeconfig="$folder/admin.kubeconfig" --leader-elect=false --bind-address=127.0.0.1 >"$folder/scheduler.log" 2>&1 &
}

etcd_answers() { exec 3<>/dev/tcp/127.0.0.1/2379; }

start_containerd() { # NUMBER
    local node=$1 own=$folder/n$1
    mkdir -p "$own/network" /run/n"$node"
    cat >"$own/network/pods.conflist" <<JSON
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "pods", "isGateway": true, "ipMasq": false, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "/run/n$node/addresses", "ranges": [[{"subnet": "10.98.$node.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "loopback"}]}
JSON
    # Root of a container of this machine may not lower a process's oom_score_adj, which runc would want to.
    cat >"$own/containerd.toml" <<TOML
version = 2
root = "/run/n$node/containerd"
state = "/run/n$node/state"
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.opt"]
[grpc]
address = "/run/n$node/containerd.socket"
[plugins."io.containerd.grpc.v1.cri"]
disable_tcp_service = true
sandbox_image = "localhost/pause:test"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
conf_dir = "$own/network"
bin_dir = "$parts/root/usr/lib/cni"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
TOML
    in_node "$node" containerd --config "$own/containerd.toml" >"$own/containerd.log" 2>&1 &
    until_ok ctr --address /run/n"$node"/containerd.socket version
    ctr --address /run/n"$node"/containerd.socket --namespace k8s.io images import "$images" >"$own/import.log" 2>&1
}

start_kubelet() { # NUMBER
    local node=$1 own=$folder/n$1
    kubeconfig "$own/kubeconfig" node-token-"$node"
    cat >"$own/kubelet.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 10.97.0.$node
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $pki/ca.crt}}
authorization: {mode: Webhook}
cgroupDriver: cgroupfs
cgroupsPerQOS: false
clusterDNS: []
containerRuntimeEndpoint: unix:///run/n$node/containerd.socket
enforceNodeAllocatable: []
evictionHard: {memory.available: 1Mi, nodefs.available: 1%, imagefs.available: 1%}
failCgroupV1: false
failSwapOn: false
imageGCHighThresholdPercent: 100
makeIPTablesUtilChains: false
nodeStatusUpdateFrequency: 2s
podLogsDir: /var/log/n$node
readOnlyPort: 0
volumePluginDir: $folder/plugins
YAML
    in_node "$node" kubelet --config="$own/kubelet.yaml" --kubeconfig="$own/kubeconfig" --hostname-override=n"$node" \
        --node-ip=10.97.0."$node" --root-dir=/run/n"$node"/kubelet --cert-dir="$own" >"$own/kubelet.log" 2>&1 &
}

nodes_are_ready() { [ "$(kubectl --kubeconfig="$folder/admin.kubeconfig" get nodes --no-headers | grep -c ' Ready ')" = 3 ]; }

keep_off_the_disk
build_network
make_credentials
# The images are unpacked while the API starts.
for node in $nodes; do start_containerd "$node" & done
start_control_plane
until_ok kubectl --kubeconfig="$folder/admin.kubeconfig" create namespace bench
for node in $nodes; do
    until_ok ctr --address /run/n"$node"/containerd.socket --namespace k8s.io images check "name==localhost/fathom:test"
    start_kubelet "$node"
done
until_ok nodes_are_ready
touch "$folder/ready"
exec sleep infinity
