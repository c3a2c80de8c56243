package community;

import java.util.Collection;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.TopicPartition;
import org.springframework.beans.factory.annotation.Autowired;
import org.springframework.boot.ApplicationArguments;
import org.springframework.boot.ApplicationRunner;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.kafka.annotation.KafkaListener;
import org.springframework.kafka.core.KafkaTemplate;
import org.springframework.kafka.listener.ConsumerAwareRebalanceListener;
import org.springframework.stereotype.Component;

/** The tutorial's application: a producer that sends two messages and a consumer that prints them. */
@SpringBootApplication
public class Application {
  public static void main(String[] arguments) {
    SpringApplication.run(Application.class, arguments);
  }
}

@Component
class KafkaProducer implements ApplicationRunner {
  @Autowired private KafkaTemplate<String, String> kafkaTemplate;
  @Autowired private Positioned positioned;

  void sendMessage(String topic, String content) {
    kafkaTemplate.send(topic, content);
  }

  @Override
  public void run(ApplicationArguments arguments) throws InterruptedException {
    positioned.latch.await();
    sendMessage("test", "你好");
    sendMessage("test", "在吗");
  }
}

/** A listener without offsets begins at the topic's end: this tells when it has found the end, so that it misses nothing. */
@Component
class Positioned implements ConsumerAwareRebalanceListener {
  final CountDownLatch latch = new CountDownLatch(1);

  @Override
  public void onPartitionsAssigned(Consumer<?, ?> consumer, Collection<TopicPartition> partitions) {
    partitions.forEach(consumer::position);
    if (!partitions.isEmpty()) latch.countDown();
  }
}

@Component
class KafkaConsumer {
  @KafkaListener(topics = {"test"})
  void handleMessage(ConsumerRecord<String, String> record) {
    System.out.println(record.value());
  }
}
