// Requests as Kafka's own classes write them, of every API and version that a broker does not say it serves, on
// one connection; one JSON line for each, with the errors that Kafka's own classes read in the answer.
//   java -cp … Frames.java HOST:PORT
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.message.ApiVersionsResponseData;
import org.apache.kafka.common.message.ApiVersionsResponseData.ApiVersion;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.common.protocol.types.BoundField;
import org.apache.kafka.common.protocol.types.Schema;
import org.apache.kafka.common.protocol.types.Struct;
import org.apache.kafka.common.protocol.types.TaggedFields;
import org.apache.kafka.common.protocol.types.Type;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.requests.AbstractResponse;
import org.apache.kafka.common.requests.RequestHeader;
import org.apache.kafka.common.requests.ResponseHeader;

public final class Frames {
    private static final int CORRELATION = 7;
    private static final ObjectMapper JSON = new ObjectMapper();
    private final String host;
    private final int port;
    private Socket socket;

    private Frames(String address) throws IOException {
        host = address.substring(0, address.lastIndexOf(':'));
        port = Integer.parseInt(address.substring(address.lastIndexOf(':') + 1));
        connect();
    }

    private void connect() throws IOException {
        socket = new Socket(host, port);
        socket.setSoTimeout(30_000);
    }

    /** The answer's body after its header, which has to be the one that was asked for. */
    private ByteBuffer ask(RequestHeader header, ByteBuffer body) throws IOException {
        ByteBuffer head =
            MessageUtil.toByteBufferAccessor(header.data(), header.headerVersion()).buffer();
        DataOutputStream out = new DataOutputStream(socket.getOutputStream());
        ByteBuffer frame = ByteBuffer.allocate(4 + head.remaining() + body.remaining());
        frame.putInt(head.remaining() + body.remaining()).put(head).put(body);
        out.write(frame.array());
        DataInputStream in = new DataInputStream(socket.getInputStream());
        ByteBuffer answer = ByteBuffer.wrap(in.readNBytes(in.readInt()));
        short version = header.apiKey().responseHeaderVersion(header.apiVersion());
        if (ResponseHeader.parse(answer, version).correlationId() != CORRELATION) {
            throw new IllegalStateException("another correlation id");
        }
        return answer;
    }

    private Map<Short, ApiVersion> served() throws IOException {
        RequestHeader header = new RequestHeader(ApiKeys.API_VERSIONS, (short) 0, "frames", CORRELATION);
        ByteBuffer answer = ask(header, ByteBuffer.allocate(0));
        Map<Short, ApiVersion> found = new TreeMap<>();
        new ApiVersionsResponseData(new ByteBufferAccessor(answer), (short) 0).apiKeys()
            .forEach(row -> found.put(row.apiKey(), row));
        return found;
    }

    private Set<String> refused(ApiKeys key, short version) throws IOException {
        Struct said = (Struct) filled(key.messageType.requestSchemas()[version]);
        ByteBuffer body = ByteBuffer.allocate(said.sizeOf());
        said.writeTo(body);
        body.flip();
        ByteBuffer answer = ask(new RequestHeader(key, version, "frames", CORRELATION), body);
        Struct read = key.messageType.responseSchemas()[version].read(answer.duplicate());
        ByteBufferAccessor left = new ByteBufferAccessor(answer);
        AbstractResponse.parseResponse(key, left, version);
        if (left.remaining() > 0) {
            throw new IllegalStateException(left.remaining() + " bytes too many");
        }
        Set<String> errors = new TreeSet<>();
        collect(read, errors);
        return errors;
    }

    /** The names of all errors in an answer, wherever they stand. */
    private static void collect(Object item, Set<String> errors) {
        if (item instanceof Struct struct) {
            for (BoundField field : struct.schema().fields()) {
                if (field.def.name.endsWith("error_code")) {
                    errors.add(Errors.forCode((Short) struct.get(field)).name());
                }
                collect(struct.get(field), errors);
            }
        } else if (item instanceof Object[] rows) {
            for (Object row : rows) {
                collect(row, errors);
            }
        }
    }

    /** A value of the type: of an array one item, and nothing is null. */
    private static Object filled(Type type) {
        if (type instanceof Schema schema) {
            Struct struct = new Struct(schema);
            for (BoundField field : schema.fields()) {
                struct.set(field, filled(field.def.type));
            }
            return struct;
        }
        if (type.isArray()) {
            return new Object[] {filled(type.arrayElementType().orElseThrow())};
        }
        if (type instanceof TaggedFields) {
            return new TreeMap<Integer, Object>();
        }
        String name = ((Type.DocumentedType) type).typeName();
        return switch (name.replace("COMPACT_", "").replace("NULLABLE_", "")) {
            case "BOOLEAN" -> true;
            case "INT8" -> (byte) 1;
            case "INT16" -> (short) 1;
            case "INT32", "UINT16" -> 1;
            case "INT64", "UINT32" -> 1L;
            case "FLOAT64" -> 1.0;
            case "UUID" -> Uuid.ONE_UUID;
            case "STRING" -> "some";
            case "BYTES" -> ByteBuffer.wrap(new byte[] {1});
            case "RECORDS" -> MemoryRecords.EMPTY;
            default -> throw new IllegalStateException(name);
        };
    }

    private static boolean isIn(ApiVersion row, short version) {
        return row.minVersion() <= version && version <= row.maxVersion();
    }

    public static void main(String[] arguments) throws IOException {
        Frames frames = new Frames(arguments[0]);
        Map<Short, ApiVersion> served = frames.served();
        for (ApiKeys key : ApiKeys.brokerApis()) {
            ApiVersion row = served.get(key.id);
            for (short version : key.allVersions()) {
                // The state of share groups is what brokers ask of each other, and no client.
                if (key.name.contains("ShareGroupState") || row != null && isIn(row, version)) {
                    continue;
                }
                Map<String, Object> told = new LinkedHashMap<>();
                told.put("step", key.name + " " + version);
                try {
                    told.put("answer", frames.refused(key, version));
                } catch (IOException | RuntimeException error) {
                    told.put("error", error.toString());
                    frames.connect();
                }
                System.out.println(JSON.writeValueAsString(told));
            }
        }
    }
}
