# The first process of a node, in mount, pid, network and host name namespaces of its own.
# Called with: name, address, the node's folder, the folder of Kubernetes' programs, kube-proxy's kubeconfig, the kubelet's.
name=$1 address=$2 folder=$3 programs=$4 proxy_kubeconfig=$5 kubelet_kubeconfig=$6

hostname "$name"
# Nothing that is mounted here may reach the host; everything must reach the pods.
mount --make-rprivate /
mount --make-rshared /

# What a machine has for itself. Two kubelets with one /var/log delete each other's pods' logs.
own() { mkdir -p "$folder/$1" "$2"; mount --bind "$folder/$1" "$2"; }
own containerd /var/lib/containerd
own run-containerd /run/containerd
own run-netns /run/netns
own kubelet /var/lib/kubelet
own cni /var/lib/cni
own log /var/log

containerd --config "$folder/containerd.toml" >>"$folder/log/containerd.log" 2>&1 &
until ctr version >/dev/null 2>&1; do sleep 0.05; done
# --cluster-cidr tells kube-proxy which senders are pods, and need no masquerading.
"$programs/kube-proxy" --kubeconfig="$proxy_kubeconfig" --hostname-override="$name" --proxy-mode=iptables \
    --cluster-cidr=10.78.0.0/16 --conntrack-max-per-core=0 \
    --healthz-bind-address=127.0.0.1 --metrics-bind-address=127.0.0.1 >>"$folder/log/kube-proxy.log" 2>&1 &
"$programs/kubelet" --config="$folder/kubelet.yaml" --kubeconfig="$kubelet_kubeconfig" \
    --hostname-override="$name" --node-ip="$address" --v=2 >>"$folder/log/kubelet.log" 2>&1 &
# As the first process of its namespace it inherits every orphan and has to take its exit status.
wait
