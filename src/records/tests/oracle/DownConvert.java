import java.io.*; import java.nio.*; import java.nio.file.*; import java.util.*; import java.util.zip.CRC32;
import org.apache.kafka.common.record.*; import org.apache.kafka.common.utils.*;

/**
 * Prints what Kafka 2.8.2 makes of each segment below a folder when it converts it for an old Fetch: for each
 * segment, target format and first offset the messages, an uncompressed one by its CRC and a compressed one by
 * length and CRC-32 of what it holds.
 *
 *     javac -cp "$KAFKA_2_8_2/libs/*" DownConvert.java
 *     java -cp "$KAFKA_2_8_2/libs/*:." DownConvert ../../../../fixtures \
 *         v1,v2-0.11,v2-4.4,txn/0.11,txn/4.4,mixed,compacted/4.4 > down-conversion-2.8.2.txt
 */
public class DownConvert {
    public static void main(String[] args) throws Exception {
        Path root = Paths.get(args[0]);
        List<Path> logs = new ArrayList<>();
        for (String folder : args[1].split(","))
            try (var walk = Files.walk(root.resolve(folder))) { walk.filter(p -> p.toString().endsWith(".log")).sorted().forEach(logs::add); }
        for (Path log : logs) {
            if (Files.size(log) == 0) continue;
            for (byte magic = 0; magic < 2; magic++) {
                MemoryRecords records = MemoryRecords.readableRecords(ByteBuffer.wrap(Files.readAllBytes(log)));
                long first = -1, last = -1;
                int readable = 0; // Kafka refuses all for one zstd batch; we convert what stands before it
                for (RecordBatch batch : records.batches()) {
                    if (batch.compressionType() == CompressionType.ZSTD) break;
                    if (first < 0) first = batch.baseOffset();
                    last = batch.lastOffset();
                    readable += batch.sizeInBytes();
                }
                if (readable > 0) records = MemoryRecords.readableRecords(ByteBuffer.wrap(Files.readAllBytes(log), 0, readable).slice());
                for (long from : new long[] {0, first + (last - first) / 2 + 1}) {
                    String head = root.relativize(log) + " " + magic + " " + from;
                    try {
                        ByteBuffer out = records.downConvert(magic, from, Time.SYSTEM).records().buffer();
                        System.out.println(head);
                        while (out.hasRemaining()) message(out);
                    } catch (org.apache.kafka.common.errors.UnsupportedCompressionTypeException e) {
                        System.out.println(head + " unsupported");
                    }
                }
            }
        }
    }

    static void message(ByteBuffer out) throws Exception {
        long offset = out.getLong(); int size = out.getInt(); int end = out.position() + size;
        int crc = out.getInt(); byte magic = out.get(), attributes = out.get();
        String line = "  " + offset + " " + magic + " " + attributes;
        if (magic > 0) line += " " + out.getLong();
        if ((attributes & 7) == 0) { line += " crc " + Integer.toUnsignedString(crc); }
        else {
            if (out.getInt() != -1) throw new IllegalStateException("a wrapper with a key");
            int length = out.getInt();
            ByteBuffer value = out.slice(); value.limit(length);
            InputStream in = CompressionType.forId(attributes & 7).wrapForInput(value, magic, BufferSupplier.NO_CACHING);
            byte[] inner = in.readAllBytes();
            CRC32 sum = new CRC32(); sum.update(inner);
            line += " inner " + inner.length + " " + sum.getValue();
        }
        out.position(end);
        System.out.println(line);
    }
}
