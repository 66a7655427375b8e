// Smoke does with the official Go client what an application does, against a running broker.
//
// Arguments: service URL, topic prefix, an existing partitioned topic of four partitions, and the
// scenarios. It prints "PASS name" or "FAIL name: reason" for each.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
)

const patience = 10 * time.Second

type smoke struct {
	client      pulsar.Client
	partitioned string
}

func main() {
	quiet := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL:              os.Args[1],
		OperationTimeout: patience,
		Logger:           log.NewLoggerWithSlog(quiet),
	})
	if err != nil {
		fmt.Println("FAIL", err)
		os.Exit(1)
	}
	s := smoke{client, os.Args[3]}
	scenarios := map[string]func(string) error{
		"batched_compressed":  s.batchedCompressed,
		"keys_and_properties": s.keysAndProperties,
		"shared":              s.shared,
		"failover":            s.failover,
		"exclusive":           s.exclusive,
		"reader":              s.reader,
		"seek":                s.seek,
		"cumulative_ack":      s.cumulativeAck,
		"negative_ack":        s.negativeAck,
		"partitioned":         s.fourPartitions,
		"many_topics":         s.manyTopics,
		"chunked":             s.chunked,
		"schema":              s.schema,
	}
	for _, name := range os.Args[4:] {
		run, known := scenarios[name]
		if !known {
			fmt.Printf("FAIL %s: no such scenario\n", name)
			continue
		}
		if err := run(os.Args[2] + name); err != nil {
			fmt.Printf("FAIL %s: %s\n", name, strings.ReplaceAll(err.Error(), "\n", " "))
		} else {
			fmt.Println("PASS", name)
		}
	}
	client.Close()
}

func (s smoke) batchedCompressed(topic string) error {
	types := []pulsar.CompressionType{pulsar.NoCompression, pulsar.LZ4, pulsar.ZLib, pulsar.ZSTD}
	for _, kind := range types {
		name := fmt.Sprintf("%s-%d", topic, kind)
		consumer, err := s.subscribe(name, pulsar.Exclusive)
		if err != nil {
			return err
		}
		producer, err := s.client.CreateProducer(pulsar.ProducerOptions{
			Topic: name, CompressionType: kind, BatchingMaxMessages: 50,
			BatchingMaxPublishDelay: 20 * time.Millisecond,
		})
		if err != nil {
			return err
		}
		if err := publish(producer, 200); err != nil {
			return err
		}
		if err := expect(consumer, 0, 200); err != nil {
			return err
		}
		producer.Close()
		consumer.Close()
	}
	return nil
}

func (s smoke) keysAndProperties(topic string) error {
	consumer, producer, err := s.pair(topic, pulsar.Exclusive)
	if err != nil {
		return err
	}
	defer consumer.Close()
	defer producer.Close()
	event := time.UnixMilli(12345)
	id, err := producer.Send(context.Background(), &pulsar.ProducerMessage{
		Payload: []byte("v"), Key: "k", OrderingKey: "o", EventTime: event,
		Properties: map[string]string{"a": "1", "b": ""},
	})
	if err != nil {
		return err
	}
	message, err := next(consumer)
	if err != nil {
		return err
	}
	properties := message.Properties()
	same := message.ID().LedgerID() == id.LedgerID() && message.ID().EntryID() == id.EntryID()
	return check(string(message.Payload()) == "v" && message.Key() == "k" && same &&
		message.OrderingKey() == "o" && message.EventTime().Equal(event) &&
		len(properties) == 2 && properties["a"] == "1", "got %v", message)
}

func (s smoke) shared(topic string) error {
	one, producer, err := s.pair(topic, pulsar.Shared)
	if err != nil {
		return err
	}
	defer one.Close()
	defer producer.Close()
	two, err := s.subscribe(topic, pulsar.Shared)
	if err != nil {
		return err
	}
	defer two.Close()
	if err := publish(producer, 100); err != nil {
		return err
	}
	all := map[string]bool{}
	counts := []int{0, 0}
	deadline := time.After(patience)
	for len(all) < 100 {
		var message pulsar.ConsumerMessage
		select {
		case message = <-one.Chan():
			counts[0]++
		case message = <-two.Chan():
			counts[1]++
		case <-deadline:
			return fmt.Errorf("%d of 100 messages", len(all))
		}
		if all[string(message.Payload())] {
			return errors.New("a message came twice")
		}
		all[string(message.Payload())] = true
		if err := message.Ack(message); err != nil {
			return err
		}
	}
	return check(counts[0] > 10 && counts[1] > 10, "not shared: %v", counts)
}

func (s smoke) failover(topic string) error {
	first, producer, err := s.pair(topic, pulsar.Failover)
	if err != nil {
		return err
	}
	defer producer.Close()
	second, err := s.subscribe(topic, pulsar.Failover)
	if err != nil {
		return err
	}
	if err := publish(producer, 20); err != nil {
		return err
	}
	active, standby := first, second
	var message pulsar.ConsumerMessage
	select {
	case message = <-first.Chan():
	case message = <-second.Chan():
		active, standby = second, first
	case <-time.After(patience):
		return errors.New("no consumer is active")
	}
	defer standby.Close()
	for number := 0; ; number++ {
		if string(message.Payload()) != strconv.Itoa(number) {
			return fmt.Errorf("%d is %s", number, message.Payload())
		}
		if err := active.Ack(message); err != nil {
			return err
		}
		if number == 9 {
			break
		}
		received, err := next(active)
		if err != nil {
			return err
		}
		message = pulsar.ConsumerMessage{Consumer: active, Message: received}
	}
	active.Close()
	return expect(standby, 10, 20)
}

func (s smoke) exclusive(topic string) error {
	consumer, err := s.subscribe(topic, pulsar.Exclusive)
	if err != nil {
		return err
	}
	defer consumer.Close()
	second, err := s.subscribe(topic, pulsar.Exclusive)
	if err == nil {
		second.Close()
		return errors.New("a second exclusive consumer was let in")
	}
	return check(strings.Contains(err.Error(), "ConsumerBusy"), "refused with %v", err)
}

func (s smoke) reader(topic string) error {
	producer, err := s.unbatched(topic)
	if err != nil {
		return err
	}
	defer producer.Close()
	var ids []pulsar.MessageID
	for number := 0; number < 10; number++ {
		id, err := producer.Send(context.Background(), text(number))
		if err != nil {
			return err
		}
		ids = append(ids, id)
	}
	for _, start := range []struct {
		id    pulsar.MessageID
		first int
	}{{pulsar.EarliestMessageID(), 0}, {ids[4], 5}} {
		reader, err := s.client.CreateReader(
			pulsar.ReaderOptions{Topic: topic, StartMessageID: start.id})
		if err != nil {
			return err
		}
		number := start.first
		for ; reader.HasNext(); number++ {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			message, err := reader.Next(ctx)
			cancel()
			if err != nil {
				return err
			}
			if string(message.Payload()) != strconv.Itoa(number) {
				return fmt.Errorf("%d is %s", number, message.Payload())
			}
		}
		reader.Close()
		if number != 10 {
			return fmt.Errorf("the reader ended at %d", number)
		}
	}
	return nil
}

func (s smoke) seek(topic string) error {
	consumer, producer, err := s.pair(topic, pulsar.Exclusive)
	if err != nil {
		return err
	}
	defer consumer.Close()
	defer producer.Close()
	if err := publish(producer, 10); err != nil {
		return err
	}
	var ids []pulsar.MessageID
	for number := 0; number < 10; number++ {
		message, err := next(consumer)
		if err != nil {
			return err
		}
		ids = append(ids, message.ID())
		if err := consumer.Ack(message); err != nil {
			return err
		}
	}
	if err := consumer.Seek(ids[3]); err != nil {
		return err
	}
	if err := expect(consumer, 4, 10); err != nil {
		return err
	}
	time.Sleep(5 * time.Millisecond)
	now := time.Now()
	if _, err := producer.Send(context.Background(), text(10)); err != nil {
		return err
	}
	if err := consumer.SeekByTime(now); err != nil {
		return err
	}
	return expect(consumer, 10, 11)
}

func (s smoke) cumulativeAck(topic string) error {
	consumer, producer, err := s.pair(topic, pulsar.Exclusive)
	if err != nil {
		return err
	}
	defer producer.Close()
	if err := publish(producer, 10); err != nil {
		return err
	}
	for number := 0; number < 5; number++ {
		message, err := next(consumer)
		if err != nil {
			return err
		}
		if number == 4 {
			if err := consumer.AckCumulative(message); err != nil {
				return err
			}
		}
	}
	consumer.Close()
	again, err := s.subscribe(topic, pulsar.Exclusive)
	if err != nil {
		return err
	}
	defer again.Close()
	return expect(again, 5, 10)
}

func (s smoke) negativeAck(topic string) error {
	consumer, producer, err := s.pair(topic, pulsar.Shared)
	if err != nil {
		return err
	}
	defer consumer.Close()
	defer producer.Close()
	if err := publish(producer, 1); err != nil {
		return err
	}
	message, err := next(consumer)
	if err != nil {
		return err
	}
	consumer.Nack(message)
	message, err = next(consumer)
	if err != nil {
		return err
	}
	return check(message.RedeliveryCount() == 1, "redelivered %d times", message.RedeliveryCount())
}

func (s smoke) fourPartitions(string) error {
	partitions, err := s.client.TopicPartitions(s.partitioned)
	if err != nil {
		return err
	}
	if len(partitions) != 4 {
		return fmt.Errorf("%d partitions", len(partitions))
	}
	consumer, err := s.subscribe(s.partitioned, pulsar.Shared)
	if err != nil {
		return err
	}
	defer consumer.Close()
	producer, err := s.client.CreateProducer(pulsar.ProducerOptions{Topic: s.partitioned})
	if err != nil {
		return err
	}
	defer producer.Close()
	for number := 0; number < 200; number++ {
		message := text(number)
		message.Key = strconv.Itoa(number % 20)
		producer.SendAsync(context.Background(), message,
			func(pulsar.MessageID, *pulsar.ProducerMessage, error) {})
	}
	if err := producer.Flush(); err != nil {
		return err
	}
	last := map[string]int{}
	topics := map[string]bool{}
	for number := 0; number < 200; number++ {
		message, err := next(consumer)
		if err != nil {
			return err
		}
		value, err := strconv.Atoi(string(message.Payload()))
		if err != nil {
			return err
		}
		if previous, seen := last[message.Key()]; seen && previous >= value {
			return fmt.Errorf("key %s is out of order", message.Key())
		}
		last[message.Key()] = value
		topics[message.Topic()] = true
		if err := consumer.Ack(message); err != nil {
			return err
		}
	}
	return check(len(topics) == 4, "messages from %d partitions", len(topics))
}

func (s smoke) manyTopics(topic string) error {
	topics := []string{topic + "-x", topic + "-y", topic + "-z"}
	for _, name := range topics {
		producer, err := s.unbatched(name)
		if err != nil {
			return err
		}
		if _, err := producer.Send(context.Background(), text(1)); err != nil {
			return err
		}
		producer.Close()
	}
	for _, options := range []pulsar.ConsumerOptions{
		{Topics: topics, SubscriptionName: "list"},
		{TopicsPattern: topic + "-.*", SubscriptionName: "pattern"},
	} {
		options.SubscriptionInitialPosition = pulsar.SubscriptionPositionEarliest
		consumer, err := s.client.Subscribe(options)
		if err != nil {
			return err
		}
		from := map[string]bool{}
		for range topics {
			message, err := next(consumer)
			if err != nil {
				return err
			}
			from[message.Topic()] = true
		}
		consumer.Close()
		if len(from) != len(topics) {
			return fmt.Errorf("messages from %v", from)
		}
	}
	return nil
}

func (s smoke) chunked(topic string) error {
	consumer, err := s.subscribe(topic, pulsar.Exclusive)
	if err != nil {
		return err
	}
	defer consumer.Close()
	producer, err := s.client.CreateProducer(pulsar.ProducerOptions{
		Topic: topic, DisableBatching: true, EnableChunking: true,
	})
	if err != nil {
		return err
	}
	defer producer.Close()
	large := strings.Repeat("0123456789abcdef", 12<<16)
	if _, err := producer.Send(
		context.Background(), &pulsar.ProducerMessage{Payload: []byte(large)}); err != nil {
		return err
	}
	message, err := next(consumer)
	if err != nil {
		return err
	}
	return check(string(message.Payload()) == large, "the chunks do not make the message")
}

type flight struct {
	Carrier string `json:"carrier"`
	Delay   int    `json:"delay"`
}

func (s smoke) schema(topic string) error {
	definition := `{"type":"record","name":"Flight","fields":[` +
		`{"name":"carrier","type":"string"},{"name":"delay","type":"int"}]}`
	json := pulsar.NewJSONSchema(definition, nil)
	consumer, err := s.client.Subscribe(pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: "s", Schema: json,
	})
	if err != nil {
		return err
	}
	defer consumer.Close()
	producer, err := s.client.CreateProducer(pulsar.ProducerOptions{Topic: topic, Schema: json})
	if err != nil {
		return err
	}
	defer producer.Close()
	sent := flight{"UA", -4}
	if _, err := producer.Send(
		context.Background(), &pulsar.ProducerMessage{Value: &sent}); err != nil {
		return err
	}
	message, err := next(consumer)
	if err != nil {
		return err
	}
	var got flight
	if err := message.GetSchemaValue(&got); err != nil {
		return err
	}
	return check(got == sent, "got %v", got)
}

// -- helpers

func (s smoke) subscribe(topic string, kind pulsar.SubscriptionType) (pulsar.Consumer, error) {
	return s.client.Subscribe(pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: "s", Type: kind, AckWithResponse: true,
		ReceiverQueueSize: 10, NackRedeliveryDelay: 50 * time.Millisecond,
	})
}

func (s smoke) unbatched(topic string) (pulsar.Producer, error) {
	return s.client.CreateProducer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
}

func (s smoke) pair(topic string, kind pulsar.SubscriptionType) (
	pulsar.Consumer, pulsar.Producer, error) {
	consumer, err := s.subscribe(topic, kind)
	if err != nil {
		return nil, nil, err
	}
	producer, err := s.unbatched(topic)
	return consumer, producer, err
}

func text(number int) *pulsar.ProducerMessage {
	return &pulsar.ProducerMessage{Payload: []byte(strconv.Itoa(number))}
}

func publish(producer pulsar.Producer, count int) error {
	results := make(chan error, count)
	for number := 0; number < count; number++ {
		producer.SendAsync(context.Background(), text(number),
			func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { results <- err })
	}
	if err := producer.Flush(); err != nil {
		return err
	}
	for number := 0; number < count; number++ {
		if err := <-results; err != nil {
			return err
		}
	}
	return nil
}

func next(consumer pulsar.Consumer) (pulsar.Message, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return consumer.Receive(ctx)
}

// expect receives and acknowledges the numbers from first up to end, in order.
func expect(consumer pulsar.Consumer, first, end int) error {
	for number := first; number < end; number++ {
		message, err := next(consumer)
		if err != nil {
			return fmt.Errorf("no message %d: %w", number, err)
		}
		if string(message.Payload()) != strconv.Itoa(number) {
			return fmt.Errorf("%d is %s", number, message.Payload())
		}
		if err := consumer.Ack(message); err != nil {
			return err
		}
	}
	return nil
}

func check(holds bool, format string, values ...any) error {
	if holds {
		return nil
	}
	return fmt.Errorf(format, values...)
}
