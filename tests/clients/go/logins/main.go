// Logins logs in at a locked broker with the official Go client, in each way and without success.
//
// Arguments: a file of lines NAME=VALUE with addresses and credentials, and the scenarios, which
// run side by side. It prints "PASS name" or "FAIL name: reason" for each.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/admin"
	adminauth "github.com/apache/pulsar-client-go/pulsaradmin/pkg/admin/auth"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/admin/config"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/rest"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"
)

// refusal is the time for a client that tries again and again and is never let in.
const refusal = 2 * time.Second

// overHTTPS is held by one client at a time: the library has one transport for all of a process,
// so a client would send its requests over a connection with another one's certificate.
var overHTTPS sync.Mutex

type values map[string]string

func main() {
	found, err := read(os.Args[1])
	if err != nil {
		fmt.Println("FAIL", err)
		os.Exit(1)
	}
	var scenarios sync.WaitGroup
	for _, name := range os.Args[2:] {
		scenarios.Add(1)
		go func() {
			defer scenarios.Done()
			if err := found.run(name); err != nil {
				fmt.Printf("FAIL %s: %s\n", name, strings.ReplaceAll(err.Error(), "\n", " "))
			} else {
				fmt.Println("PASS", name)
			}
		}()
	}
	scenarios.Wait()
}

func read(path string) (values, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	found := values{}
	for _, line := range strings.Split(string(text), "\n") {
		if name, value, good := strings.Cut(line, "="); good {
			found[name] = value
		}
	}
	return found, nil
}

func (v values) run(name string) error {
	way, scenario, _ := strings.Cut(name, "_")
	switch scenario {
	case "comes_in":
		return v.comesIn(way)
	case "has_no_rights":
		return v.hasNoRights(way)
	case "is_refused":
		return v.isRefused(way)
	case "expires_and_is_renewed":
		return v.isRenewed(way, name)
	case "expires":
		return v.ends(name)
	}
	return errors.New("no such scenario")
}

// -- ways to log in ---

func (v values) login(way, role string) (pulsar.Authentication, error) {
	switch way {
	case "token":
		return pulsar.NewAuthenticationToken(v[role+"_token"]), nil
	case "tls":
		return pulsar.NewAuthenticationTLS(v[role+"_certificate"], v[role+"_key"]), nil
	case "basic":
		return pulsar.NewAuthenticationBasic(role, v[role+"_password"])
	case "oidc":
		return v.oidc(role, "go"), nil
	}
	return nil, errors.New("no such way")
}

func (v values) wrong(way string) (pulsar.Authentication, error) {
	switch way {
	case "token":
		return pulsar.NewAuthenticationToken(v["forged_token"]), nil
	case "tls":
		return pulsar.NewAuthenticationTLS(v["foreign_certificate"], v["foreign_key"]), nil
	case "basic":
		return pulsar.NewAuthenticationBasic("cook", "wrong")
	case "oidc":
		return v.oidc("wrong", "go"), nil
	case "nothing":
		return nil, nil
	}
	return nil, errors.New("no such way")
}

func (v values) oidc(client, purpose string) pulsar.Authentication {
	return pulsar.NewAuthenticationOAuth2(map[string]string{
		"type":       "client_credentials",
		"issuerUrl":  v["issuer"],
		"audience":   v["audience"],
		"privateKey": "file://" + v[client+"_credentials"],
		"scope":      purpose,
	})
}

// brief is a token that a service hands out, good for a few seconds.
func (v values) brief(purpose string) (string, error) {
	answer, err := http.Get(v["brief_tokens"] + purpose)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return string(text), err
}

// adminLogin is what the admin client has of the same ways: it knows no passwords.
func (v values) adminLogin(way, role string) (admin.Client, error) {
	settings := &config.Config{WebServiceURL: v["web_url"], TLSTrustCertsFilePath: v["trust"]}
	transport, err := adminauth.NewDefaultTransport(settings)
	if err != nil {
		return nil, err
	}
	var provider adminauth.Provider
	switch way {
	case "token":
		provider, err = adminauth.NewAuthenticationToken(v[role+"_token"], transport)
	case "tls":
		provider, err = adminauth.NewAuthenticationTLS(
			v[role+"_certificate"], v[role+"_key"], transport)
	case "oidc":
		provider, err = adminauth.NewAuthenticationOAuth2WithParams(
			v["issuer"], role, v["audience"], "file://"+v[role+"_credentials"], transport)
	default:
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return admin.NewPulsarClientWithAuthProvider(settings, provider)
}

// -- what happens ---

func (v values) comesIn(way string) error {
	topic := v.topic("go-" + way)
	for _, url := range []string{"service_url", "web_url"} {
		login, err := v.login(way, "cook")
		if err != nil {
			return err
		}
		if err := v.onePasses(url, login, topic); err != nil {
			return fmt.Errorf("%s: %w", url, err)
		}
	}
	operator, err := v.adminLogin(way, "cook")
	if err != nil || operator == nil {
		return err
	}
	made, err := utils.GetTopicName(topic + "-made")
	if err != nil {
		return err
	}
	if err := operator.Topics().Create(*made, 2); err != nil {
		return err
	}
	metadata, err := operator.Topics().GetMetadata(*made)
	if err != nil {
		return err
	}
	return check(metadata.Partitions == 2, "it has %d partitions", metadata.Partitions)
}

func (v values) onePasses(url string, login pulsar.Authentication, topic string) error {
	if url == "web_url" {
		overHTTPS.Lock()
		defer overHTTPS.Unlock()
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	}
	client, err := v.client(url, login, v.patience())
	if err != nil {
		return err
	}
	defer client.Close()
	consumer, producer, err := pair(client, topic, v.patience())
	if err != nil {
		return err
	}
	defer consumer.Close()
	defer producer.Close()
	if _, err := producer.Send(context.Background(), message(url)); err != nil {
		return err
	}
	return v.next(consumer, url)
}

func (v values) hasNoRights(way string) error {
	login, err := v.login(way, "stranger")
	if err != nil {
		return err
	}
	client, err := v.client("service_url", login, v.patience())
	if err != nil {
		return err
	}
	defer client.Close()
	topic := v.topic("go-" + way + "-stranger")
	for _, attempt := range []func() error{
		func() error {
			_, err := client.CreateProducer(pulsar.ProducerOptions{Topic: topic})
			return err
		},
		func() error { _, err := subscribe(client, topic); return err },
	} {
		if err := attempt(); err == nil || !strings.Contains(err.Error(), "AuthorizationError") {
			return fmt.Errorf("expected AuthorizationError, was told %v", err)
		}
	}
	operator, err := v.adminLogin(way, "stranger")
	if err != nil || operator == nil {
		return err
	}
	return v.isForbidden(operator, topic, http.StatusForbidden)
}

func (v values) isRefused(way string) error {
	topic := v.topic("go-" + way + "-refused")
	login, err := v.wrong(way)
	if err != nil {
		return err
	}
	client, err := v.client("service_url", login, refusal)
	if err == nil {
		defer client.Close()
		_, err = client.CreateProducer(pulsar.ProducerOptions{Topic: topic})
	}
	if err == nil {
		return errors.New("nobody refused it")
	}
	if way != "token" {
		return nil
	}
	settings := &config.Config{
		WebServiceURL: v["web_url"], TLSTrustCertsFilePath: v["trust"], Token: v["forged_token"],
	}
	operator, err := admin.New(settings)
	if err != nil {
		return err
	}
	return v.isForbidden(operator, topic, http.StatusUnauthorized)
}

func (v values) isForbidden(operator admin.Client, topic string, status int) error {
	name, err := utils.GetTopicName(topic)
	if err != nil {
		return err
	}
	var told rest.Error
	err = operator.Topics().Create(*name, 0)
	return check(errors.As(err, &told) && told.Code == status, "expected %d, was told %v", status, err)
}

// isRenewed publishes while two tokens end: nothing is lost, doubled or out of order.
func (v values) isRenewed(way, name string) error {
	login := pulsar.NewAuthenticationTokenFromSupplier(func() (string, error) { return v.brief("go-" + name) })
	if way == "oidc" {
		login = v.oidc("brief", "go-"+name)
	}
	client, err := v.client("service_url", login, v.patience())
	if err != nil {
		return err
	}
	defer client.Close()
	topic := v.topic("go-" + name)
	consumer, producer, err := pair(client, topic, v.patience())
	if err != nil {
		return err
	}
	defer consumer.Close()
	before, err := v.connections(topic)
	if err != nil {
		return err
	}
	seconds, err := strconv.ParseFloat(v["publishing_seconds"], 64)
	if err != nil {
		return err
	}
	failures := make(chan error, 100_000)
	sent := 0
	for end := time.Now().Add(time.Duration(seconds * float64(time.Second))); time.Now().Before(end); {
		producer.SendAsync(context.Background(), message(strconv.Itoa(sent)),
			func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
				if err != nil {
					failures <- err
				}
			})
		sent++
		time.Sleep(2 * time.Millisecond)
	}
	if err := producer.Flush(); err != nil {
		return err
	}
	if err := v.receive(consumer, sent); err != nil {
		return err
	}
	if len(failures) > 0 {
		return <-failures
	}
	after, err := v.connections(topic)
	if err != nil {
		return err
	}
	producer.Close()
	return check(before == after, "it was disconnected: %s, %s", before, after)
}

// connections says since when the producer and the consumer of a topic are connected.
func (v values) connections(topic string) (string, error) {
	operator, err := v.adminLogin("token", "cook")
	if err != nil {
		return "", err
	}
	name, err := utils.GetTopicName(topic)
	if err != nil {
		return "", err
	}
	stats, err := operator.Topics().GetStats(*name)
	if err != nil {
		return "", err
	}
	consumers := stats.Subscriptions["s"].Consumers
	if len(stats.Publishers) != 1 || len(consumers) != 1 {
		return "", errors.New("the statistics have not one producer and one consumer")
	}
	return fmt.Sprint(stats.Publishers[0].Address, " ", stats.Publishers[0].ConnectedSince, " ",
		consumers[0].Address, " ", consumers[0].ConnectedSince), nil
}

// ends publishes with a token that nobody renews: the client is told, what was confirmed is there.
func (v values) ends(name string) error {
	topic := v.topic("go-" + name)
	reading, err := v.client("service_url", pulsar.NewAuthenticationToken(v["cook_token"]), v.patience())
	if err != nil {
		return err
	}
	defer reading.Close()
	consumer, err := subscribe(reading, topic)
	if err != nil {
		return err
	}
	defer consumer.Close()
	first := sync.OnceValues(func() (string, error) { return v.brief("go-" + name) })
	client, err := v.client("service_url", pulsar.NewAuthenticationTokenFromSupplier(first), refusal)
	if err != nil {
		return err
	}
	defer client.Close()
	producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: topic, SendTimeout: refusal})
	if err != nil {
		return err
	}
	confirmed := 0
	for end := time.Now().Add(v.patience()); err == nil; confirmed++ {
		if time.Now().After(end) {
			return errors.New("it publishes with a token that has expired")
		}
		_, err = producer.Send(context.Background(), message(strconv.Itoa(confirmed)))
	}
	fmt.Fprintln(os.Stderr, name, "the producer was told", err)
	if err := v.staysOutside(first, topic); err != nil {
		return err
	}
	return v.receive(consumer, confirmed-1)
}

// staysOutside waits until a new client does not come in with the token.
func (v values) staysOutside(token func() (string, error), topic string) error {
	for end := time.Now().Add(v.patience()); time.Now().Before(end); time.Sleep(refusal / 10) {
		login := pulsar.NewAuthenticationTokenFromSupplier(token)
		client, err := v.client("service_url", login, refusal)
		if err != nil {
			return err
		}
		_, err = client.CreateProducer(pulsar.ProducerOptions{Topic: topic})
		client.Close()
		if err != nil {
			return nil
		}
	}
	return errors.New("a client comes in with a token that has expired")
}

// -- parts ---

func (v values) client(
	url string, login pulsar.Authentication, timeout time.Duration,
) (pulsar.Client, error) {
	quiet := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	return pulsar.NewClient(pulsar.ClientOptions{
		URL:                   v[url],
		Authentication:        login,
		TLSTrustCertsFilePath: v["trust"],
		TLSValidateHostname:   true,
		OperationTimeout:      timeout,
		Logger:                log.NewLoggerWithSlog(quiet),
	})
}

func subscribe(client pulsar.Client, topic string) (pulsar.Consumer, error) {
	return client.Subscribe(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "s"})
}

func pair(
	client pulsar.Client, topic string, timeout time.Duration,
) (pulsar.Consumer, pulsar.Producer, error) {
	consumer, err := subscribe(client, topic)
	if err != nil {
		return nil, nil, err
	}
	producer, err := client.CreateProducer(
		pulsar.ProducerOptions{Topic: topic, SendTimeout: timeout})
	return consumer, producer, err
}

func (v values) receive(consumer pulsar.Consumer, count int) error {
	for number := range count {
		if err := v.next(consumer, strconv.Itoa(number)); err != nil {
			return fmt.Errorf("message %d of %d: %w", number, count, err)
		}
	}
	return nil
}

func (v values) next(consumer pulsar.Consumer, wanted string) error {
	limited, cancel := context.WithTimeout(context.Background(), v.patience())
	defer cancel()
	message, err := consumer.Receive(limited)
	if err != nil {
		return err
	}
	if err := consumer.Ack(message); err != nil {
		return err
	}
	got := string(message.Payload())
	return check(got == wanted, "expected %s, got %s", wanted, got)
}

func message(text string) *pulsar.ProducerMessage {
	return &pulsar.ProducerMessage{Payload: []byte(text)}
}

func (v values) topic(name string) string {
	return v["namespace"] + "/" + name
}

func (v values) patience() time.Duration {
	seconds, err := strconv.Atoi(v["patience_seconds"])
	if err != nil {
		panic(err)
	}
	return time.Duration(seconds) * time.Second
}

func check(good bool, format string, arguments ...any) error {
	if good {
		return nil
	}
	return fmt.Errorf(format, arguments...)
}
