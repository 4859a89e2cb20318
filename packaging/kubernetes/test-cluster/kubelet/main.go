// A stand-in for a scheduler, a kubelet and a provider of load balancers, for tests on one machine.
//
// Each Pod is a process in a network namespace of its own, with an address on a bridge. Containers run the echo server of the conformance
// suite, or CoreDNS, by the names of their images. `kubectl logs` works. A Service of the type LoadBalancer gets an address of this
// machine, at which connections and datagrams are copied to its target ports on the loopback address, where the gateway listens.
//
// It needs root, and changes the network of the namespace in which it runs: start it in one of its own.
package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	node    = "test"
	address = "10.244.0.1"
	port    = 10250
)

type kubelet struct {
	client  *kubernetes.Clientset
	program string
	coredns string
	folder  string
	pods    map[string]*pod
	next    int
	lbs     map[string]*balancer
	nextLB  int
	logs    *logs
}

type pod struct {
	namespace string
	address   string
	command   *exec.Cmd
	logs      *lines
	gone      chan struct{}
}

// lines are what a container has written.
type lines struct {
	sync.Mutex
	all []line
}

type line struct {
	at   time.Time
	text string
}

func (l *lines) read(from io.Reader) {
	scanner := bufio.NewScanner(from)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		l.Lock()
		l.all = append(l.all, line{time.Now(), scanner.Text()})
		l.Unlock()
	}
}

// logs answers /containerLogs/NAMESPACE/POD/CONTAINER of the API server.
type logs struct {
	sync.Mutex
	byPod map[string]*lines
}

func (l *logs) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if len(parts) != 4 || parts[0] != "containerLogs" {
		http.NotFound(w, r)
		return
	}
	l.Lock()
	found := l.byPod[parts[1]+"/"+parts[2]]
	l.Unlock()
	if found == nil {
		http.NotFound(w, r)
		return
	}
	since, _ := time.Parse(time.RFC3339, r.URL.Query().Get("sinceTime"))
	found.Lock()
	defer found.Unlock()
	for _, line := range found.all {
		if !line.at.Before(since) {
			fmt.Fprintln(w, line.text)
		}
	}
}

// certificate makes one that nobody verifies.
func certificate() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotAfter:     time.Now().Add(24 * time.Hour),
		IPAddresses:  []net.IP{net.ParseIP(address)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

type balancer struct {
	address string
	ports   map[string]io.Closer
}

func main() {
	config := flag.String("kubeconfig", "", "")
	program := flag.String("program", "", "the echo server")
	coredns := flag.String("coredns", "", "CoreDNS")
	folder := flag.String("folder", "", "for the files of Pods")
	flag.Parse()
	rest, err := clientcmd.BuildConfigFromFlags("", *config)
	must(err)
	rest.QPS, rest.Burst = 200, 400
	client, err := kubernetes.NewForConfig(rest)
	must(err)
	must(run("ip", "link", "add", "name", "pods", "type", "bridge"))
	must(run("ip", "addr", "add", address+"/16", "dev", "pods"))
	must(run("ip", "link", "set", "pods", "up"))
	k := &kubelet{
		client:  client,
		program: *program,
		coredns: *coredns,
		folder:  *folder,
		logs:    &logs{byPod: map[string]*lines{}},
		pods:    map[string]*pod{},
		lbs:     map[string]*balancer{},
		next:    1,
		nextLB:  1,
	}
	ctx := context.Background()
	labels := map[string]string{"topology.kubernetes.io/zone": "test"}
	status := v1.NodeStatus{
		Addresses:       []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: address}},
		DaemonEndpoints: v1.NodeDaemonEndpoints{KubeletEndpoint: v1.DaemonEndpoint{Port: port}},
	}
	machine := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, Labels: labels}, Status: status}
	_, err = client.CoreV1().Nodes().Create(ctx, machine, metav1.CreateOptions{})
	must(err)
	own, err := certificate()
	must(err)
	server := &http.Server{
		Addr:      fmt.Sprintf("%s:%d", address, port),
		Handler:   k.logs,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{own}, MinVersion: tls.VersionTLS12},
	}
	go func() { must(server.ListenAndServeTLS("", "")) }()
	for ; ; time.Sleep(200 * time.Millisecond) {
		if err := k.turn(ctx); err != nil {
			log.Printf("%v", err)
			time.Sleep(time.Second)
		}
	}
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func run(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

func (k *kubelet) turn(ctx context.Context) error {
	pods, err := k.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	there := map[string]bool{}
	for i := range pods.Items {
		p := &pods.Items[i]
		there[string(p.UID)] = true
		if err := k.pod(ctx, p); err != nil {
			log.Printf("Pod %s/%s: %v", p.Namespace, p.Name, err)
		}
	}
	for uid := range k.pods {
		if !there[uid] {
			k.stop(uid)
		}
	}
	services, err := k.client.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	balanced := map[string]bool{}
	for i := range services.Items {
		s := &services.Items[i]
		if s.Spec.Type == v1.ServiceTypeLoadBalancer {
			balanced[string(s.UID)] = true
			if err := k.balance(ctx, s); err != nil {
				log.Printf("Service %s/%s: %v", s.Namespace, s.Name, err)
			}
		}
	}
	for uid, b := range k.lbs {
		if !balanced[uid] {
			for _, port := range b.ports {
				port.Close()
			}
			_ = run("ip", "addr", "del", b.address+"/32", "dev", "pods")
			delete(k.lbs, uid)
		}
	}
	return nil
}

func (k *kubelet) pod(ctx context.Context, p *v1.Pod) error {
	api := k.client.CoreV1().Pods(p.Namespace)
	uid := string(p.UID)
	switch {
	case p.DeletionTimestamp != nil:
		k.stop(uid)
		now := int64(0)
		return api.Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	case p.Spec.NodeName == "":
		return api.Bind(ctx, &v1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace, UID: p.UID},
			Target:     v1.ObjectReference{Kind: "Node", Name: node},
		}, metav1.CreateOptions{})
	case k.pods[uid] == nil:
		started, err := k.start(ctx, p)
		if err != nil {
			return err
		}
		k.pods[uid] = started
		// The program listens.
		time.Sleep(100 * time.Millisecond)
		return k.report(ctx, p, started)
	case p.Status.Phase != v1.PodRunning:
		return k.report(ctx, p, k.pods[uid])
	}
	return nil
}

func (k *kubelet) report(ctx context.Context, p *v1.Pod, started *pod) error {
	now := metav1.Now()
	status := p.Status.DeepCopy()
	status.Phase, status.PodIP, status.HostIP = v1.PodRunning, started.address, address
	status.PodIPs = []v1.PodIP{{IP: started.address}}
	status.StartTime = &now
	status.Conditions = nil
	for _, kind := range []v1.PodConditionType{v1.PodScheduled, v1.PodInitialized, v1.ContainersReady, v1.PodReady} {
		status.Conditions = append(status.Conditions, v1.PodCondition{Type: kind, Status: v1.ConditionTrue, LastTransitionTime: now})
	}
	status.ContainerStatuses = nil
	isStarted := true
	for _, c := range p.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, v1.ContainerStatus{
			Name: c.Name, Image: c.Image, Ready: true, Started: &isStarted,
			State: v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: now}},
		})
	}
	changed := p.DeepCopy()
	changed.Status = *status
	_, err := k.client.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	return err
}

// start runs the first container of a Pod.
func (k *kubelet) start(ctx context.Context, p *v1.Pod) (*pod, error) {
	container := p.Spec.Containers[0]
	folder := filepath.Join(k.folder, string(p.UID))
	paths, err := k.volumes(ctx, p, folder)
	if err != nil {
		return nil, err
	}
	var env []string
	for _, e := range container.Env {
		value := e.Value
		if e.ValueFrom != nil && e.ValueFrom.FieldRef != nil {
			switch e.ValueFrom.FieldRef.FieldPath {
			case "metadata.name":
				value = p.Name
			case "metadata.namespace":
				value = p.Namespace
			}
		}
		for from, to := range paths {
			value = strings.ReplaceAll(value, from, to)
		}
		env = append(env, e.Name+"="+value)
	}
	k.next++
	number := k.next
	own := fmt.Sprintf("10.244.%d.%d", number/250, number%250+2)
	name := fmt.Sprintf("pod%d", number)
	for _, line := range []string{
		"netns add " + name,
		"link add name v" + name + " type veth peer name eth0 netns " + name,
		"link set v" + name + " master pods up",
		"-n " + name + " addr add " + own + "/16 dev eth0",
		"-n " + name + " link set eth0 up",
		"-n " + name + " link set lo up",
		"-n " + name + " route add default via " + address,
	} {
		if err := run("ip", strings.Fields(line)...); err != nil {
			return nil, err
		}
	}
	program := k.program
	if strings.Contains(container.Image, "coredns") {
		program = k.coredns
	}
	args := []string{"netns", "exec", name, program}
	for _, argument := range container.Args {
		for from, to := range paths {
			argument = strings.ReplaceAll(argument, from, to)
		}
		args = append(args, argument)
	}
	command := exec.Command("ip", args...)
	command.Env = append(os.Environ(), env...)
	output, input := io.Pipe()
	command.Stdout, command.Stderr = input, input
	if err := command.Start(); err != nil {
		return nil, err
	}
	started := &pod{namespace: name, address: own, command: command, logs: &lines{}, gone: make(chan struct{})}
	k.logs.Lock()
	k.logs.byPod[p.Namespace+"/"+p.Name] = started.logs
	k.logs.Unlock()
	go started.logs.read(output)
	go func() {
		if err := command.Wait(); err != nil {
			log.Printf("%s (%s/%s): %v", name, p.Namespace, p.Name, err)
		}
		input.Close()
		close(started.gone)
	}()
	return started, nil
}

// volumes writes Secrets and ConfigMaps that a container mounts, and returns the folder of each mount path.
func (k *kubelet) volumes(ctx context.Context, p *v1.Pod, folder string) (map[string]string, error) {
	paths := map[string]string{}
	for _, mount := range p.Spec.Containers[0].VolumeMounts {
		for _, volume := range p.Spec.Volumes {
			if volume.Name != mount.Name {
				continue
			}
			files := map[string][]byte{}
			var items []v1.KeyToPath
			switch {
			case volume.Secret != nil:
				secret, err := k.client.CoreV1().Secrets(p.Namespace).Get(ctx, volume.Secret.SecretName, metav1.GetOptions{})
				if err != nil {
					return nil, err
				}
				files, items = secret.Data, volume.Secret.Items
			case volume.ConfigMap != nil:
				configMap, err := k.client.CoreV1().ConfigMaps(p.Namespace).Get(ctx, volume.ConfigMap.Name, metav1.GetOptions{})
				if err != nil {
					return nil, err
				}
				for key, text := range configMap.Data {
					files[key] = []byte(text)
				}
				items = volume.ConfigMap.Items
			default:
				continue
			}
			to := filepath.Join(folder, volume.Name)
			if err := os.MkdirAll(to, 0o700); err != nil {
				return nil, err
			}
			for key, content := range files {
				name := key
				for _, item := range items {
					if item.Key == key {
						name = item.Path
					}
				}
				if err := os.WriteFile(filepath.Join(to, name), content, 0o600); err != nil {
					return nil, err
				}
			}
			paths[mount.MountPath] = to
		}
	}
	return paths, nil
}

func (k *kubelet) stop(uid string) {
	p := k.pods[uid]
	if p == nil {
		return
	}
	_ = p.command.Process.Kill()
	<-p.gone
	if err := run("ip", "netns", "del", p.namespace); err != nil {
		log.Printf("%v", err)
	}
	delete(k.pods, uid)
}

func (k *kubelet) balance(ctx context.Context, s *v1.Service) error {
	b := k.lbs[string(s.UID)]
	if b == nil {
		k.nextLB++
		b = &balancer{address: fmt.Sprintf("10.245.0.%d", k.nextLB), ports: map[string]io.Closer{}}
		if err := run("ip", "addr", "add", b.address+"/32", "dev", "pods"); err != nil {
			return err
		}
		k.lbs[string(s.UID)] = b
	}
	keyOf := func(port v1.ServicePort) string {
		return fmt.Sprintf("%s %d %d", port.Protocol, port.Port, port.TargetPort.IntValue())
	}
	wanted := map[string]bool{}
	for _, port := range s.Spec.Ports {
		wanted[keyOf(port)] = true
	}
	for key, port := range b.ports {
		if !wanted[key] {
			port.Close()
			delete(b.ports, key)
		}
	}
	for _, port := range s.Spec.Ports {
		key := keyOf(port)
		if b.ports[key] != nil || port.TargetPort.IntValue() == 0 {
			continue
		}
		from := fmt.Sprintf("%s:%d", b.address, port.Port)
		to := fmt.Sprintf("127.0.0.1:%d", port.TargetPort.IntValue())
		var opened io.Closer
		var err error
		if port.Protocol == v1.ProtocolUDP {
			opened, err = relayUDP(from, to)
		} else {
			opened, err = relayTCP(from, to)
		}
		if err != nil {
			return err
		}
		b.ports[key] = opened
	}
	if ingress := s.Status.LoadBalancer.Ingress; len(ingress) == 1 && ingress[0].IP == b.address {
		return nil
	}
	changed := s.DeepCopy()
	changed.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: b.address}}
	_, err := k.client.CoreV1().Services(s.Namespace).UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	return err
}

func relayTCP(from, to string) (io.Closer, error) {
	listener, err := net.Listen("tcp", from)
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go copyBoth(client.(*net.TCPConn), to)
		}
	}()
	return listener, nil
}

func copyBoth(client *net.TCPConn, to string) {
	defer client.Close()
	connection, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer connection.Close()
	server := connection.(*net.TCPConn)
	var both sync.WaitGroup
	both.Add(2)
	half := func(to, from *net.TCPConn) {
		defer both.Done()
		_, _ = io.Copy(to, from)
		_ = to.CloseWrite()
	}
	go half(server, client)
	go half(client, server)
	both.Wait()
}

func relayUDP(from, to string) (io.Closer, error) {
	own, err := net.ResolveUDPAddr("udp", from)
	if err != nil {
		return nil, err
	}
	socket, err := net.ListenUDP("udp", own)
	if err != nil {
		return nil, err
	}
	go func() {
		sessions := map[string]net.Conn{}
		buffer := make([]byte, 65536)
		for {
			n, client, err := socket.ReadFromUDP(buffer)
			if err != nil {
				return
			}
			session := sessions[client.String()]
			if session == nil {
				if session, err = net.Dial("udp", to); err != nil {
					continue
				}
				sessions[client.String()] = session
				go func() {
					answer := make([]byte, 65536)
					for {
						n, err := session.Read(answer)
						if err != nil {
							return
						}
						_, _ = socket.WriteToUDP(answer[:n], client)
					}
				}()
			}
			_, _ = session.Write(buffer[:n])
		}
	}()
	return socket, nil
}
